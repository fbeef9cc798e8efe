"""Passes in turns: every variant decodes every prompt, again and again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline import PacelineError as ClientError

from bench.measurement import Pass
from bench.progress import Progress
from bench.variants import Variant
from common.errors import PacelineError


@dataclass(frozen=True)
class Passes:
    """What was measured, and what could not be."""

    by_variant: dict[str, list[Pass]] = field(default_factory=dict)
    """Every repetition of each variant, in the order of the variants."""

    left_out: list[str] = field(default_factory=list)
    """A line for each variant that failed: which, and why."""

    interrupted: bool = False
    """Whether somebody had it end early: of all variants what is whole of all is left."""


def measure(
    variants: Sequence[Variant],
    prompts: Sequence[Sequence[int]],
    *,
    repetitions: int,
    max_tokens: int,
    progress: Progress,
) -> Passes:
    """Let every variant decode every prompt, in turns, after a warm-up that does not count.

    The order turns round at every repetition, so that none always follows the same one. A variant
    that fails is left out from then on, and so is what it measured before. Once a repetition is
    whole, KeyboardInterrupt ends this with those that are.

    Args:
        variants: What is compared.
        prompts: Ids.
        repetitions: Passes of each variant.
        max_tokens: Most tokens for each prompt.
        progress: Told before every pass.

    Raises:
        KeyboardInterrupt: It came before.
    """
    passes: dict[str, list[Pass]] = {variant.name: [] for variant in variants}
    left_out: list[str] = []
    turns = [("warm-up", variant) for variant in variants]
    for repetition in range(repetitions):
        order = variants if repetition % 2 == 0 else reversed(variants)
        turns += [(f"{repetition + 1}/{repetitions}", variant) for variant in order]
    try:
        for done, (when, variant) in enumerate(turns):
            if variant.name not in passes:
                continue
            progress(f"{when}: {variant.name}", done, len(turns))
            try:
                if when == "warm-up":
                    variant.measure(prompts[:1], max_tokens)
                else:
                    passes[variant.name].append(variant.measure(prompts, max_tokens))
            except (PacelineError, ClientError) as error:
                del passes[variant.name]
                left_out.append(f"{variant.name}: {error}")
    except KeyboardInterrupt:
        whole = min(map(len, passes.values()), default=0)
        if not whole:
            raise
        left_out.append(f"all but {whole} of {repetitions} repetitions: interrupted")
        kept = {name: found[:whole] for name, found in passes.items()}
        return Passes(kept, left_out, interrupted=True)
    return Passes(passes, left_out)
