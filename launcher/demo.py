"""What `paceline demo` does once the services run: show text, then measure."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from paceline import Client, Generation, Model
from rich.console import Console
from rich.text import Text

from common.errors import ModelError
from launcher.colours import ColourPrinter, legend
from launcher.timing import Timed, rate, timed


@dataclass(frozen=True)
class Prompt:
    """One thing to continue."""

    title: str
    text: str
    chat: bool
    """Whether the text is a user's turn, to be wrapped by the chat template."""

    def generate(self, client: Client, method: str, max_tokens: int) -> Generation:
        """Start a greedy generation."""
        if self.chat:
            messages = [{"role": "user", "content": self.text}]
            return client.generate(messages=messages, method=method, max_tokens=max_tokens)
        return client.generate(self.text, method=method, max_tokens=max_tokens)


PROMPTS = (
    Prompt("Dialogue", "I need a bus from Sacramento to Los Angeles on Friday.", chat=True),
    Prompt(
        "Arithmetic (fluent, and wrong: the model is very small)",
        "A baker sells 24 loaves a day at $3 each. How much money does she make in a week?",
        chat=True,
    ),
    Prompt("Story", "Once upon a time, there was a little fox who", chat=False),
)


METHODS = ("draft", "medusa", "eagle")
"""What is shown, where the deployment has it."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much to do."""

    max_tokens: int
    """Most tokens for each prompt."""

    repetitions: int
    """Timed runs of each prompt and method."""

    prompts: tuple[Prompt, ...] = PROMPTS
    """What to go on from."""

    def fitting(self, model: Model) -> Plan:
        """Return it with no chats for a model that knows none."""
        chats = model.has_chat_template
        return replace(
            self, prompts=tuple(replace(each, chat=each.chat and chats) for each in self.prompts)
        )


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What one method did."""

    method: str
    tokens_per_s: float
    speedup: float
    """Over plain decoding."""

    mean_accepted_length: float
    """Tokens a target pass commits; plain decoding is 1."""

    acceptance_rate: float
    """Share of the checked draft tokens that were committed."""

    def line(self) -> str:
        """Return it for people."""
        return (
            f"{self.method:<7}{self.tokens_per_s:>5.0f} tokens/s: {self.speedup:.2f}×; "
            f"mean accepted length {self.mean_accepted_length:.2f}, "
            f"acceptance rate {self.acceptance_rate:.2f}"
        )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the demo found."""

    plain_tokens_per_s: float
    methods: tuple[Figures, ...]
    """Those that draft."""

    same_text: bool
    """Whether every run of a prompt gave the same ids, whatever the method."""

    def to_json(self) -> str:
        """Return it on one line."""
        return json.dumps(asdict(self))

    def lines(self) -> str:
        """Return it for people, a line for each method."""
        plain = f"{'plain':<7}{self.plain_tokens_per_s:>5.0f} tokens/s"
        same = f"same text: {'yes' if self.same_text else 'NO'}"
        return "\n".join([plain, *(figures.line() for figures in self.methods), same])


def run(client: Client, target: Path, plan: Plan, console: Console | None) -> Outcome:
    """Stream the prompts, then time them with and without drafts.

    Args:
        client: Of the gateway.
        target: Directory of the model served, for its tokenizer.
        plan: How much to do.
        console: Where to show the text; None shows nothing.

    Raises:
        ModelError: The model has no tokenizer, so there is no text to show.
    """
    if not (target / "tokenizer.json").is_file():
        raise ModelError(f"the demo needs text, and there is no tokenizer.json in {target}")
    (model,) = client.models()
    plan = plan.fitting(model)
    methods = [name for name in METHODS if name in model.methods]
    if console:
        show(client, target, plan, methods, console)
        # No spinner: turning it would take processor time from what is being measured.
        names = ", ".join(["plain", *methods])
        console.print(f"Timing each prompt {plan.repetitions} times with {names} ...\n")
    return measure(client, plan, methods)


def show(
    client: Client, target: Path, plan: Plan, methods: Sequence[str], console: Console
) -> None:
    """Stream each prompt, coloured, the methods taking turns."""
    console.print()
    console.print(legend())
    for prompt, method in zip(plan.prompts, itertools.cycle(methods), strict=False):
        console.print(Text.assemble("\n", (prompt.title, "bold"), (f" by {method}", "dim")))
        ending = "\nassistant: " if prompt.chat else ""
        console.print(prompt.text, style="dim", end=ending, soft_wrap=True)
        printer = ColourPrinter(console, target / "tokenizer.json")
        timed(prompt.generate(client, method, plan.max_tokens), printer)
        console.print()
    console.print()


def measure(client: Client, plan: Plan, methods: Sequence[str]) -> Outcome:
    """Time every prompt with all methods in turn, so that a busy moment hits them alike."""
    runs: dict[tuple[Prompt, str], list[Timed]] = {}
    for prompt, method in schedule(plan, ["plain", *methods]):
        done = timed(prompt.generate(client, method, plan.max_tokens))
        runs.setdefault((prompt, method), []).append(done)
    return summarise(runs)


def schedule(plan: Plan, methods: Sequence[str]) -> Iterator[tuple[Prompt, str]]:
    """Yield what to run, methods interleaved."""
    for _ in range(plan.repetitions):
        for prompt in plan.prompts:
            for method in methods:
                yield prompt, method


def summarise(runs: dict[tuple[Prompt, str], list[Timed]]) -> Outcome:
    """Add the runs up."""
    by_method: dict[str, list[Timed]] = {}
    for (_, method), done in runs.items():
        by_method.setdefault(method, []).extend(done)
    plain = rate(by_method.pop("plain"))
    texts = {
        (prompt, tuple(run.result.token_ids)) for (prompt, _), done in runs.items() for run in done
    }
    return Outcome(
        plain_tokens_per_s=plain,
        methods=tuple(figures(method, done, plain) for method, done in by_method.items()),
        same_text=len(texts) == len({prompt for prompt, _ in runs}),
    )


def figures(method: str, runs: Sequence[Timed], plain: float) -> Figures:
    """Add one method's runs up; `plain` is what plain decoding did, in tokens/s."""
    stats = [run.result.speculation for run in runs]
    committed = sum(run.result.usage.completion_tokens for run in runs)
    drafted = sum(s.drafted_tokens for s in stats)
    return Figures(
        method=method,
        tokens_per_s=rate(runs),
        speedup=rate(runs) / plain if plain else 0.0,
        mean_accepted_length=committed / max(1, sum(s.rounds for s in stats)),
        acceptance_rate=sum(s.accepted_tokens for s in stats) / max(1, drafted),
    )
