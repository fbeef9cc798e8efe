"""A report as tables: on the screen and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from bench.confidence import Estimate
from bench.report import Load, Report
from bench.round_trips import RoundTrips


@dataclass(frozen=True)
class Cells:
    """A table's contents."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def drawn(self) -> Table:
        """Return it for the screen."""
        table = Table(title=self.title, title_justify="left")
        for index, column in enumerate(self.columns):
            # On a narrow screen an interval goes below its figure.
            table.add_column(column, no_wrap=index == 0)
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        """Return it as Markdown."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return "\n".join([f"**{self.title}**", "", *("| " + " | ".join(x) + " |" for x in lines)])


def tables(report: Report) -> list[Cells]:
    """Return all tables of a report."""
    made = [_speeds(report), _speedups(report)]
    if report.loads:
        made.append(_loads(report.loads))
    if report.round_trips:
        made.append(_round_trips(report.round_trips))
    return [*made, _ratios(report)]


def markdown(report: Report) -> str:
    """Return a report as Markdown."""
    settings = ", ".join(f"{key} {value}" for key, value in report.settings.items())
    parts = [f"Settings: {settings}.", *(cells.markdown() for cells in tables(report))]
    return "\n\n".join([*parts, *notes(report)]) + "\n"


def notes(report: Report) -> list[str]:
    """Return what is to be said besides, a paragraph each."""
    lines = ["In brackets: 95 % confidence, a bootstrap over repetitions and prompts."]
    if report.round_trips:
        lines.append(_about(report.round_trips))
    if report.settings.get("temperature"):
        lines.append("Same ids: transformers draws with noise of its own, and other texts with it.")
    if report.settings.get("quantize", "none") != "none":
        lines.append(
            "Same ids: llama.cpp rounds weights in its own way, and may write other texts."
        )
    lines += [f"Left out: {line}" for line in report.left_out]
    return [*lines, f"Gateway: {report.gateway_rss_bytes / 2**20:.0f} MiB resident."]


def _speeds(report: Report) -> Cells:
    domains = list(report.rows[0].by_domain)
    rows = [
        [
            row.name,
            spread(row.tokens_per_s, 0),
            *(f"{row.by_domain[domain].value:.0f}" for domain in domains),
            shown(row.mean_accepted_length),
            shown(row.acceptance_rate),
            f"{row.same_ids}/{report.prompts}",
        ]
        for row in report.rows
    ]
    return Cells(
        "Tokens/s, one prompt at a time",
        ("variant", "all", *domains, "tokens/pass", "accepted", "same ids"),
        rows,
    )


def _speedups(report: Report) -> Cells:
    domains = list(report.rows[0].speedup_by_domain)
    rows = [
        [row.name, *(spread(e) for e in (row.speedup, *row.speedup_by_domain.values()))]
        for row in report.rows
    ]
    return Cells("Speed-up over plain", ("variant", "all", *domains), rows)


def _loads(loads: Sequence[Load]) -> Cells:
    counts = sorted({load.concurrency for load in loads})
    found = {(load.method, load.concurrency): spread(load.tokens_per_s, 0) for load in loads}
    methods = dict.fromkeys(load.method for load in loads)
    return Cells(
        "Tokens/s, several prompts at once",
        ("method", *map(str, counts)),
        [[method, *(found.get((method, n), "–") for n in counts)] for method in methods],
    )


def _round_trips(delays: RoundTrips) -> Cells:
    rows = [
        [
            f"{row.round_trip_ms:g}",
            spread(row.measured, 0),
            f"{row.predicted:.0f}",
            f"{100 * (row.predicted / row.measured.value - 1):+.0f} %"
            if row.measured.value
            else "–",
            spread(row.kept),
        ]
        for row in delays.rows
    ]
    return Cells(
        "Draft, tokens/s with a round trip added between verifier and drafter",
        ("added ms", "measured", "predicted", "off by", "of that without"),
        rows,
    )


def _about(delays: RoundTrips) -> str:
    hits = ", ".join(f"{share:.2f} for {length}" for length, share in delays.hits.items())
    besides = ", ".join(f"{ms:.2f}" for ms in delays.besides_ms.values())
    return (
        f"Round trips: plain decoding {delays.plain.value:.0f} tokens/s, half a step "
        f"{delays.half_step_ms:g} ms; the drafter takes {delays.drafter_token_ms:.2f} ms a token "
        f"and {delays.drafter_way_ms:.2f} ms besides; share of rounds drafted for ahead, by draft "
        f"length: {hits}; what such rounds take besides: {besides} ms. All of this was measured "
        "without added delay, and the prediction (bench/rate_model.py) follows from it."
    )


def _ratios(report: Report) -> Cells:
    rows = [
        [one.name, spread(one.value), f"≥ {one.wanted:.2f}", "yes" if one.met else "no"]
        for one in report.ratios
    ]
    return Cells("Ratios", ("ratio", "value", "wanted", "met"), rows)


def spread(estimate: Estimate, digits: int = 2) -> str:
    """Return a figure and its interval."""
    value, low, high = (f"{x:.{digits}f}" for x in (estimate.value, estimate.low, estimate.high))
    return f"{value} [{low}–{high}]"


def shown(value: float | None) -> str:
    """Return a figure, or a dash where there is none."""
    return "–" if value is None else f"{value:.2f}"
