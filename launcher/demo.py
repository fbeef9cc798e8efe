"""What `paceline demo` does once the services run: show text, then measure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline import Client, Generation
from rich.console import Console

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


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much to do."""

    max_tokens: int
    """Most tokens for each prompt."""

    repetitions: int
    """Timed runs of each prompt and method."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the demo found."""

    draft_tokens_per_s: float
    plain_tokens_per_s: float
    speedup: float
    mean_accepted_length: float
    """Tokens a target pass commits, with drafts; plain decoding is 1."""

    acceptance_rate: float
    """Share of the checked draft tokens that were committed."""

    same_text: bool
    """Whether every run of a prompt gave the same ids, whatever the method."""

    def to_json(self) -> str:
        """Return it on one line."""
        return json.dumps(asdict(self))

    def line(self) -> str:
        """Return it for people, on one line."""
        return (
            f"{self.draft_tokens_per_s:.0f} tokens/s with speculation, "
            f"{self.plain_tokens_per_s:.0f} without: {self.speedup:.2f}×; "
            f"mean accepted length {self.mean_accepted_length:.2f}, "
            f"acceptance rate {self.acceptance_rate:.2f}; "
            f"same text: {'yes' if self.same_text else 'NO'}"
        )


def run(address: str, target: Path, plan: Plan, console: Console | None) -> Outcome:
    """Stream the prompts, then time them with and without drafts.

    Args:
        address: The gateway's.
        target: Directory of the model served, for its tokenizer.
        plan: How much to do.
        console: Where to show the text; None shows nothing.

    Raises:
        ModelError: The model has no tokenizer, so there is no text to show.
    """
    if not (target / "tokenizer.json").is_file():
        raise ModelError(f"the demo needs text, and there is no tokenizer.json in {target}")
    with Client(address) as client:
        if console:
            show(client, target, plan, console)
            # No spinner: turning it would take processor time from what is being measured.
            console.print(f"Timing each with and without drafts, {plan.repetitions} times ...\n")
        return measure(client, plan)


def show(client: Client, target: Path, plan: Plan, console: Console) -> None:
    """Stream each prompt with drafts, coloured."""
    console.print()
    console.print(legend())
    for prompt in PROMPTS:
        console.print(f"\n[bold]{prompt.title}[/bold]", highlight=False)
        ending = "\nassistant: " if prompt.chat else ""
        console.print(prompt.text, style="dim", end=ending, highlight=False, soft_wrap=True)
        printer = ColourPrinter(console, target / "tokenizer.json")
        timed(prompt.generate(client, "draft", plan.max_tokens), printer)
        console.print()
    console.print()


def measure(client: Client, plan: Plan) -> Outcome:
    """Time every prompt with both methods in turn, so that a busy moment hits both alike."""
    runs: dict[tuple[Prompt, str], list[Timed]] = {}
    for prompt, method in schedule(plan.repetitions):
        done = timed(prompt.generate(client, method, plan.max_tokens))
        runs.setdefault((prompt, method), []).append(done)
    return summarise(runs)


def schedule(repetitions: int) -> Iterator[tuple[Prompt, str]]:
    """Yield what to run, methods interleaved."""
    for _ in range(repetitions):
        for prompt in PROMPTS:
            yield prompt, "plain"
            yield prompt, "draft"


def summarise(runs: dict[tuple[Prompt, str], list[Timed]]) -> Outcome:
    """Add the runs up."""
    plain, draft = (
        [run for (_, ran), done in runs.items() if ran == method for run in done]
        for method in ("plain", "draft")
    )
    texts = {
        (prompt, tuple(run.result.token_ids)) for (prompt, _), done in runs.items() for run in done
    }
    stats = [run.result.speculation for run in draft]
    committed = sum(run.result.usage.completion_tokens for run in draft)
    drafted = sum(s.drafted_tokens for s in stats)
    plain_rate, draft_rate = rate(plain), rate(draft)
    return Outcome(
        draft_tokens_per_s=draft_rate,
        plain_tokens_per_s=plain_rate,
        speedup=draft_rate / plain_rate if plain_rate else 0.0,
        mean_accepted_length=committed / max(1, sum(s.rounds for s in stats)),
        acceptance_rate=sum(s.accepted_tokens for s in stats) / max(1, drafted),
        same_text=len(texts) == len({prompt for prompt, _ in runs}),
    )
