"""What a step costs with lookahead's window, beside a plain step.

    python -m bench.window_cost [MODEL_DIRECTORY] [--dtype D] [--max-tokens N] [--per-domain N]

The engine in process, on CPU with one thread, decodes every bundled prompt greedily: plainly, by
lookahead with the sizes it chooses here, and with those that its authors recommend. A window that
does not earn its rows rests, so steps with it and without it are told apart. N-grams are not shared
between requests. What services add to a step is not in it: see `bench.pool_warmth`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import torch

from bench import prompts
from bench.arguments import at_least, ending_well
from bench.tables import Cells
from common.lookahead_sizes import LookaheadSizes
from common.model.loader import Dtype, load
from common.model.output import Output
from common.model.roll import Drawing
from common.model.runner import Runner
from common.model.segment import Segment
from launcher import models
from verifier.config import LEAST_KV_BYTES, EngineConfig
from verifier.cost import StepCost, measure
from verifier.engine import Engine
from verifier.methods.lookahead import LookaheadProposer
from verifier.pool import sizes
from verifier.pool.config import LookaheadConfig
from verifier.sequence import Event, Request

PLAIN, LOOKAHEAD = "plain", "lookahead"


class CountedRunner(Runner):
    """Notes how many rows its latest pass had."""

    rows = 0

    def forward(
        self, segments: Sequence[Segment], drawings: Sequence[Drawing] = (), *, tap: bool = True
    ) -> Output:
        """One pass."""
        self.rows = sum(len(segment.ids) for segment in segments)
        return super().forward(segments, drawings, tap=tap)


@dataclass
class Steps:
    """Steps of one kind."""

    rows: list[int] = field(default_factory=list)
    """Of each: the last token, guesses and the window's nodes."""
    seconds: list[float] = field(default_factory=list)
    """Of each."""
    tokens: int = 0
    """Committed by all of them."""

    def add(self, rows: int, seconds: float, tokens: int) -> None:
        """Take a step into account."""
        self.rows.append(rows)
        self.seconds.append(seconds)
        self.tokens += tokens

    def __add__(self, other: Steps) -> Steps:
        return Steps(
            self.rows + other.rows, self.seconds + other.seconds, self.tokens + other.tokens
        )

    def cells(self, name: str, of_steps: int, plain_s: float) -> list[str]:
        """Return a line of the table.

        Args:
            name: What to call them.
            of_steps: Steps of the way to decode that they are part of.
            plain_s: A plain step.
        """
        if not self.rows:
            return [name, "0 %", "–", "–", "–", "–"]
        seconds = statistics.median(self.seconds)
        return [
            name,
            f"{100 * len(self.rows) / of_steps:.0f} %",
            f"{statistics.fmean(self.rows):.2f}",
            f"{1e3 * seconds:.2f}",
            f"{seconds / plain_s:.2f}",
            f"{self.tokens / len(self.rows):.2f}",
        ]


class Target:
    """The model, and what its steps cost without anything around them.

    Args:
        directory: Of the model.
        dtype: torch dtype of the weights, or auto.
    """

    def __init__(self, directory: Path, dtype: str) -> None:
        self.config = EngineConfig()
        loaded = load(str(directory), dtype=dtype, device="cpu")  # type: ignore[arg-type]
        self.runner = CountedRunner(
            loaded, kv_bytes=LEAST_KV_BYTES, block_tokens=self.config.block_tokens
        )
        self.costs = measure(self.runner)
        self.ends = frozenset(loaded.eos_token_ids)

    def chosen(self) -> LookaheadSizes:
        """Return the sizes that lookahead takes where nobody asks for others."""
        parameters, most = self.runner.loaded.parameters, self.config.max_batch_tokens - 1
        return asked(
            sizes.choose(LookaheadConfig(), StepCost(*self.costs), parameters, most_rows=most)
        )

    def published(self) -> LookaheadSizes:
        """Return the sizes that are recommended for a target like this one."""
        parameters = self.runner.loaded.parameters
        return asked(next(each for most, each in sizes.PUBLISHED if parameters <= most))


class Way:
    """One way to decode: an engine of its own, so that none learns what another's windows earn.

    Args:
        target: The model.
        wanted: Sizes of lookahead; None decodes plainly.
    """

    def __init__(self, target: Target, wanted: LookaheadSizes | None) -> None:
        self._target, self._wanted = target, wanted
        self._engine = Engine(target.runner, target.config, cost=StepCost(*target.costs))
        self.alone, self.windowed = Steps(), Steps()

    def decode(self, prompt: Sequence[int], max_tokens: int) -> None:
        """Decode one prompt; note its steps but for those up to the first token."""
        heard: list[Event] = []
        request = Request(
            request_id="bench",
            prompt_ids=tuple(prompt),
            max_tokens=max_tokens,
            method=LOOKAHEAD if self._wanted else PLAIN,
            lookahead=self._wanted or LookaheadSizes(),
            stop_ids=self._target.ends,
        )
        self._engine.submit(request, heard.append)
        while not (heard and (heard[-1].finish or heard[-1].error)):
            told, windows, started = len(heard), self._windows, time.perf_counter()
            if not self._engine.step():
                self._engine.wait()
            elif 0 < told < len(heard):
                steps = self.windowed if self._windows > windows else self.alone
                seconds = time.perf_counter() - started
                steps.add(self._target.runner.rows, seconds, len(heard[-1].ids))
        if error := heard[-1].error:
            raise error

    def cells(self, plain_s: float) -> list[list[str]]:
        """Return its lines of the table."""
        count = len(self.alone.rows) + len(self.windowed.rows)
        if self._wanted is None:
            return [self.alone.cells(PLAIN, count, plain_s)]
        name = f"W {self._wanted.window}, N {self._wanted.ngram}, G {self._wanted.guesses}"
        return [
            (self.alone + self.windowed).cells(name, count, plain_s),
            self.alone.cells(f"{name}: guesses alone", count, plain_s),
            self.windowed.cells(f"{name}: with the window", count, plain_s),
        ]

    @property
    def _windows(self) -> int:
        """Steps with the window so far."""
        proposer = self._engine.methods.single[LOOKAHEAD]
        assert isinstance(proposer, LookaheadProposer)
        return proposer.windows


def asked(chosen: sizes.Sizes) -> LookaheadSizes:
    """Return sizes as a request asks for them."""
    return LookaheadSizes(window=chosen.window, ngram=chosen.ngram, guesses=chosen.guesses)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("model", nargs="?", type=Path, help="the bundled target by default")
    parser.add_argument("--dtype", default="auto", choices=get_args(Dtype))
    parser.add_argument(
        "--max-tokens", type=at_least(2), default=64, help="most tokens of each text"
    )
    number = at_least(0)
    parser.add_argument("--per-domain", type=number, default=0, help="prompts of each; 0 takes all")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    directory = models.choose(given.model).target
    tokenizer = prompts.tokenizer_of(directory)
    target = Target(directory, given.dtype)
    plain = Way(target, None)
    wanted = dict.fromkeys((target.chosen(), target.published()))  # once where they are the same
    ways = [plain, *(Way(target, each) for each in wanted)]
    for ids in prompts.encode_here(prompts.load(given.per_domain), tokenizer):
        for way in ways:
            way.decode(ids, given.max_tokens)
    plain_s = statistics.median(plain.alone.seconds)
    head = ("step", "share of steps", "rows", "ms, median", "× plain", "tokens")
    rows = [line for way in ways for line in way.cells(plain_s)]
    print(Cells(f"{directory.name}, {given.dtype}", head, rows).markdown())


if __name__ == "__main__":
    with ending_well():
        main()
