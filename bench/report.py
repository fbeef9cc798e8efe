"""What the bench found: medians, ratios, and how they are written down."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

from rich.table import Table

from bench.variants import Measurement


@dataclass(frozen=True, kw_only=True)
class Row:
    """One variant over all repetitions."""

    name: str
    tokens_per_s: float
    """Median of the repetitions."""

    repetitions: list[float]
    """Tokens/s of each."""

    mean_accepted_length: float | None
    """Tokens committed per target pass; None where nobody counted."""

    acceptance_rate: float | None
    """Share of checked draft tokens that were committed; None where nothing was drafted."""

    same_ids: int
    """Prompts whose ids are those of the baseline."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Two variants compared: median of the repetitions' ratios."""

    name: str
    value: float
    wanted: float
    """At least this."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """One run of the bench."""

    settings: dict[str, str | int]
    prompts: int
    rows: list[Row]
    ratios: list[Ratio]
    gateway_rss_bytes: int

    def to_json(self) -> str:
        """Return it on one line."""
        return json.dumps(asdict(self))

    def to_markdown(self) -> str:
        """Return it as tables."""
        settings = ", ".join(f"{key} {value}" for key, value in self.settings.items())
        lines = [f"Settings: {settings}.", "", *markdown(COLUMNS, self._cells()), ""]
        lines += [*markdown(RATIO_COLUMNS, self._ratio_cells()), ""]
        lines += [f"Gateway: {self.gateway_rss_bytes / 2**20:.0f} MiB resident.", ""]
        return "\n".join(lines)

    def tables(self) -> list[Table]:
        """Return it for the screen."""
        return [table(COLUMNS, self._cells()), table(RATIO_COLUMNS, self._ratio_cells())]

    def _cells(self) -> list[list[str]]:
        return [
            [
                row.name,
                f"{row.tokens_per_s:.1f}",
                f"{min(row.repetitions):.0f}–{max(row.repetitions):.0f}",
                shown(row.mean_accepted_length),
                shown(row.acceptance_rate),
                f"{row.same_ids}/{self.prompts}",
            ]
            for row in self.rows
        ]

    def _ratio_cells(self) -> list[list[str]]:
        return [[r.name, f"{r.value:.2f}", f"≥ {r.wanted:.2f}"] for r in self.ratios]


COLUMNS = ("variant", "tokens/s", "range", "tokens/pass", "accepted", "same ids")
RATIO_COLUMNS = ("ratio", "value", "wanted")


def row(name: str, passes: Sequence[Measurement], baseline: Measurement) -> Row:
    """Sum one variant up.

    Args:
        name: The variant's.
        passes: Its repetitions.
        baseline: What its ids are compared with.
    """
    stats = [s for one in passes for s in one.speculation]
    committed = sum(len(ids) for one in passes for ids in one.outputs)
    rounds = sum(s.rounds for s in stats)
    drafted = sum(s.drafted_tokens for s in stats)
    rates = [one.tokens_per_s for one in passes]
    same = [
        all(one.outputs[i] == baseline.outputs[i] for one in passes)
        for i in range(len(baseline.outputs))
    ]
    return Row(
        name=name,
        tokens_per_s=median(rates),
        repetitions=rates,
        mean_accepted_length=committed / rounds if rounds else None,
        acceptance_rate=sum(s.accepted_tokens for s in stats) / drafted if drafted else None,
        same_ids=sum(same),
    )


def ratio(
    name: str,
    passes: Mapping[str, Sequence[Measurement]],
    over: str,
    under: str,
    wanted: float,
) -> Ratio:
    """Compare two variants repetition by repetition: what slows one moment slows both."""
    pairs = zip(passes[over], passes[under], strict=True)
    value = median(a.tokens_per_s / b.tokens_per_s for a, b in pairs)
    return Ratio(name=name, value=value, wanted=wanted)


def shown(value: float | None) -> str:
    """Return a figure, or a dash where there is none."""
    return "–" if value is None else f"{value:.2f}"


def table(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> Table:
    """Return a table for the screen."""
    drawn = Table()
    for column in columns:
        drawn.add_column(column, no_wrap=True)
    for cell_row in cells:
        drawn.add_row(*cell_row)
    return drawn


def markdown(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    rows = [list(columns), ["---"] * len(columns), *[list(cell_row) for cell_row in cells]]
    return ["| " + " | ".join(cell_row) + " |" for cell_row in rows]
