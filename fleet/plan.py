"""The cheapest fleet that meets a goal: a search over GPU types, draft lengths and replicas."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

from common.errors import FailedPrecondition
from fleet.estimate import Estimate, estimate
from fleet.gpus import Gpu, catalogue, chosen
from fleet.layout import Layout
from fleet.workload import PlanConfig

MOST_REPLICAS = 4096
"""Largest pool considered where nothing limits it."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """A fleet that meets the goal, the cheapest of its GPU types."""

    layout: Layout
    """Its machines and draft length."""
    estimate: Estimate
    """What to expect of it."""
    cost_per_million: float
    """Price of a million output tokens."""


def plan(config: PlanConfig, progress: Callable[[str], None] = lambda pair: None) -> list[Option]:
    """Returns the cheapest fleet for each pair of GPU types, and without drafters; cheapest first.

    Args:
        config: What it is for, and what there is.
        progress: Told the GPU types that are looked at next.

    Raises:
        InvalidArgument: A GPU type is not known.
        FailedPrecondition: No fleet meets the goal; says what stands in the way.
    """
    types = catalogue(config.gpu)
    verifiers = chosen("verifiers", config.verifiers, types)
    drafters = chosen("drafters", config.drafters, types)
    chosen("most", config.limits, types)
    found = []
    for verifier, drafter in product(verifiers, (None, *drafters)):
        progress(f"{verifier.name} with {drafter.name}" if drafter else verifier.name)
        layout = _cheapest(config, verifier, drafter)
        found += [layout] if layout is not None else []
    if not found:
        raise FailedPrecondition(_obstacle(config, verifiers, drafters))
    options = [option(layout, config) for layout in found]
    return sorted(options, key=lambda each: each.cost_per_million)


def option(layout: Layout, config: PlanConfig) -> Option:
    """Returns a fleet that carries its traffic with what is to be expected of it."""
    expected = estimate(layout, config)
    assert expected is not None
    tokens_per_hour = 3600 * config.traffic.tokens_per_s
    return Option(
        layout=layout,
        estimate=expected,
        cost_per_million=1e6 * layout.cost_per_hour / tokens_per_hour,
    )


def meets(layout: Layout, config: PlanConfig) -> bool:
    """Whether a fleet is as fast as it must be."""
    expected, goal = estimate(layout, config), config.goal
    return (
        expected is not None
        and expected.load <= goal.most_load
        and 1e3 * expected.token_s <= goal.token_ms
        and (goal.first_token_ms is None or 1e3 * expected.first_token_s <= goal.first_token_ms)
    )


def _cheapest(config: PlanConfig, verifier: Gpu, drafter: Gpu | None) -> Layout | None:
    """Returns the cheapest fleet of one type for each half; None for no drafters."""
    if drafter is None:
        return _with_length(config, verifier, None, 0, None)
    best = None
    for length in range(1, config.most_draft_tokens + 1):
        best = _with_length(config, verifier, drafter, length, best) or best
    return best


def _with_length(
    config: PlanConfig, verifier: Gpu, drafter: Gpu | None, length: int, best: Layout | None
) -> Layout | None:
    """Returns the cheapest fleet with drafts of one length that is cheaper than another."""
    most = config.limits.get(verifier.name, MOST_REPLICAS)

    def layout(verifiers: int, drafters: int) -> Layout:
        return Layout(
            verifier=verifier,
            verifiers=verifiers,
            drafter=drafter,
            drafters=drafters,
            draft_tokens=length,
        )

    def enough(verifiers: int, drafters: int) -> bool:
        return meets(layout(verifiers, drafters), config)

    def plenty(verifiers: int) -> int:
        if drafter is None:
            return 0
        taken = verifiers if drafter.name == verifier.name else 0
        left = config.limits.get(drafter.name, MOST_REPLICAS) - taken
        if best is None:
            return left
        spare = best.cost_per_hour - layout(verifiers, 0).cost_per_hour
        return min(left, math.ceil(spare / drafter.cost_per_hour) - 1)  # all of it costs less

    fewest = _fewest(partial(enough, drafters=plenty(1)), most)
    if drafter is None or fewest is None:
        return None if fewest is None else layout(fewest, 0)
    found = None
    # More verifiers may need fewer drafters: as long as that can still be cheaper.
    for verifiers in range(fewest, most + 1):
        if best is not None and layout(verifiers, 1).cost_per_hour >= best.cost_per_hour:
            break
        drafters = _fewest(partial(enough, verifiers), plenty(verifiers))
        if drafters is None:
            continue
        if best is None or layout(verifiers, drafters).cost_per_hour < best.cost_per_hour:
            found = best = layout(verifiers, drafters)
    return found


def _fewest(enough: Callable[[int], bool], most: int) -> int | None:
    """Returns the smallest number from 1 that is enough, where every larger one is, too."""
    if most < 1 or not enough(most):
        return None
    high = 1
    while high < most and not enough(high):
        high = min(2 * high, most)
    low = high // 2  # not enough, or 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _obstacle(config: PlanConfig, verifiers: tuple[Gpu, ...], drafters: tuple[Gpu, ...]) -> str:
    """Says why there is no fleet."""
    context = config.traffic.context_tokens
    fitting = [
        gpu
        for gpu in verifiers
        if Layout(verifier=gpu, verifiers=1).target(config).most_sequences(context) > 0
    ]
    if not fitting:
        names = ", ".join(gpu.name for gpu in verifiers)
        return f"the target and one sequence of it do not fit into the memory of {names}"
    goal = f"{config.goal.token_ms:g} ms a token"
    if config.goal.first_token_ms is not None:
        goal += f" and {config.goal.first_token_ms:g} ms to the first"
    named = dict.fromkeys(gpu.name for gpu in (*verifiers, *drafters))
    unlimited = ", ".join(name for name in named if name not in config.limits)
    most = f" with up to {MOST_REPLICAS} each of {unlimited}" if unlimited else ""
    return (
        f"no fleet of these GPU types reaches {goal} at a load of at most "
        f"{config.goal.most_load:.0%}{most}; allow more time, faster types, a smaller target, or "
        "more of a type (--most TYPE=COUNT)"
    )
