"""A plan on a screen, and as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fleet.plan import Option
from fleet.simulation import Played
from fleet.workload import ModelSize, PlanConfig


def tables(config: PlanConfig, options: Sequence[Option], played: Played | None) -> RenderableType:
    """Draws a plan.

    Args:
        config: What it is made from.
        options: What meets the goal, cheapest first; at least one.
        played: The simulation of the first; None where there was none.
    """
    parts: list[RenderableType] = [assumptions(config), _options(options), verdict(config, options)]
    if played is not None:
        parts.append(_comparison(options[0], played))
    return Group(*parts)


def assumptions(config: PlanConfig) -> Text:
    """Says what a plan is made from."""
    traffic, goal, step = config.traffic, config.goal, config.assumptions
    first = (
        "" if goal.first_token_ms is None else f", {goal.first_token_ms:g} ms to the first token"
    )
    return Text(
        f"target {_size(config.target)}, draft {_size(config.draft)}, acceptance "
        f"{config.acceptance:.0%}, round trip {config.round_trip_ms:g} ms\n"
        f"traffic {traffic.requests_per_s:g} requests/s of {traffic.prompt_tokens} + "
        f"{traffic.output_tokens} tokens\n"
        f"goal {goal.token_ms:g} ms a token{first}, load at most {goal.most_load:.0%}\n"
        f"steps reach {step.memory_efficiency:.0%} of the memory bandwidth and "
        f"{step.compute_efficiency:.0%} of the arithmetic, and {step.overhead_ms:g} ms more\n"
    )


def verdict(config: PlanConfig, options: Sequence[Option]) -> Text:
    """Says which fleet to take, and what drafting saves."""
    best = options[0]
    plain = next((option for option in options if option.layout.drafter is None), None)
    lines = [f"\nCheapest: {named(best)} for {best.layout.cost_per_hour:.2f} an hour."]
    drafters = [name for name in config.drafters if config.limits.get(name, 1)]
    if not (drafters and config.most_draft_tokens):
        lines.append("No drafters were considered: the plan allows none.")
    elif all(option.layout.drafter is None for option in options):
        lines.append("With drafters of these types no fleet meets the goal.")
    elif best.layout.drafter is None:
        lines.append("Drafting does not pay for this goal: plain decoding is cheaper.")
    elif plain is None:
        lines.append("Without drafters none of these GPU types meets the goal.")
    else:
        saved = 1 - best.layout.cost_per_hour / plain.layout.cost_per_hour
        lines.append(f"Without drafters: {named(plain)}; drafting saves {saved:.0%}.")
    return Text("\n".join(lines))


def named(option: Option) -> str:
    """Names the pools of a fleet."""
    layout = option.layout
    text = f"{layout.verifiers} x {layout.verifier.name}"
    if layout.drafter is not None:
        text += f" with {layout.drafters} x {layout.drafter.name}, drafts of {layout.draft_tokens}"
    return text


def data(config: PlanConfig, options: Sequence[Option], played: Played | None) -> dict[str, Any]:
    """Returns a plan as JSON holds it."""
    return {
        "input": asdict(config),
        "options": [
            {
                "verifier": option.layout.verifier.name,
                "verifiers": option.layout.verifiers,
                "drafter": option.layout.drafter.name if option.layout.drafter else None,
                "drafters": option.layout.drafters,
                "draft_tokens": option.layout.draft_tokens,
                "cost_per_hour": option.layout.cost_per_hour,
                "cost_per_million": option.cost_per_million,
                "estimate": asdict(option.estimate),
            }
            for option in options
        ],
        "simulation": None if played is None else asdict(played),
    }


def _size(size: ModelSize) -> str:
    total = size.total_params_billion
    of_all = "" if total is None else f" of {total:g}B"
    return f"{size.params_billion:g}B{of_all} at {size.bytes_per_param:g} bytes"


def _options(options: Sequence[Option]) -> Table:
    table = Table("verifiers", "drafters", header_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("draft", "ms/token", "first ms", "load", "drafters busy", "cost/h", "cost/1M"):
        table.add_column(heading, justify="right")
    for option in options:
        layout, expected = option.layout, option.estimate
        table.add_row(
            f"{layout.verifiers} x {layout.verifier.name}",
            f"{layout.drafters} x {layout.drafter.name}" if layout.drafter else "none",
            str(layout.draft_tokens) if layout.drafter else "-",
            f"{1e3 * expected.token_s:.1f}",
            f"{1e3 * expected.first_token_s:.0f}",
            f"{expected.load:.0%}",
            f"{expected.drafter_busy:.0%}" if layout.drafter else "-",
            f"{layout.cost_per_hour:.2f}",
            f"{option.cost_per_million:.2f}",
        )
    return table


def _comparison(option: Option, played: Played) -> RenderableType:
    expected = option.estimate
    table = Table("of the cheapest", header_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("planned", "simulated", "ratio"):
        table.add_column(heading, justify="right")
    rows = [
        ("ms a token", 1e3 * expected.token_s, 1e3 * played.token_s),
        ("ms to the first token", 1e3 * expected.first_token_s, 1e3 * played.first_token_s),
    ]
    for name, planned, seen in rows:
        table.add_row(name, f"{planned:.1f}", f"{seen:.1f}", f"{planned / seen:.2f}")
    return table
