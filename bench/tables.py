"""A report as tables: on the screen and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

from bench.confidence import SURE, Estimate, sure
from bench.report import Load, Report
from bench.round_trips import RoundTrip, RoundTrips
from bench.settings import DRAFTING_PEERS, PEERS, ROUNDING_PEERS


@dataclass(frozen=True)
class Cells:
    """A table's contents."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def drawn(self) -> Table:
        """Return it for the screen."""
        table = Table(
            title=self.title,
            title_justify="left",
            box=SIMPLE_HEAD,
            pad_edge=False,
            collapse_padding=True,
        )
        for column in self.columns:
            # On a narrow screen an interval goes below its figure, and nothing is cut off.
            table.add_column(column, overflow="fold")
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
    lines = [_brackets(report)]
    if report.loads:
        lines.append(_at_once(report))
    if report.round_trips:
        lines.append(_about(report.round_trips))
    if _slow_in_16_bits(report):
        lines.append(
            "transformers multiplies numbers of 16 bits slowly on this processor, which has no "
            "instructions for them: --dtype float32 compares it more fairly."
        )
    lines += _peers(report)
    if report.settings.get("temperature"):
        lines.append(
            "Same ids: transformers, llama.cpp and vLLM draw with noise of their own, and other "
            "texts with it."
        )
    if report.settings.get("quantize", "none") != "none":
        lines.append(
            "Same ids: llama.cpp rounds weights in its own way, and may write other texts."
        )
    lines += [f"Left out: {line}" for line in report.left_out]
    return [*lines, f"Gateway: {report.gateway_rss_bytes / 2**20:.0f} MiB resident."]


def _slow_in_16_bits(report: Report) -> bool:
    """Whether transformers may have been given a type that this machine has no products of."""
    names = {row.name for row in report.rows}
    on_processors = report.settings.get("device") != "cuda"
    imitated = report.settings.get("bfloat16_products") is False
    whole = report.settings.get("dtype") == "float32"
    return PEERS["transformers"] in names and on_processors and imitated and not whole


def _speeds(report: Report) -> Cells:
    domains = list(report.rows[0].by_domain)
    rows = [
        [
            row.name,
            spread(row.tokens_per_s, 0),
            *(f"{row.by_domain[domain].value:.0f}" for domain in domains),
            figure(row.mean_accepted_length),
            figure(row.acceptance_rate),
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
            *_predicted(row),
            spread(row.kept),
        ]
        for row in delays.rows
    ]
    return Cells(
        "Draft, tokens/s with a round trip added between verifier and drafter",
        ("added ms", "measured", "predicted", "off by", "of that without"),
        rows,
    )


def _predicted(row: RoundTrip) -> tuple[str, str]:
    """What the model says, and how far off that is."""
    if row.predicted is None:
        return "–", "–"
    measured = row.measured.value
    off = f"{100 * (row.predicted / measured - 1):+.0f} %" if measured else "–"
    return f"{row.predicted:.0f}", off


def _brackets(report: Report) -> str:
    """What brackets are."""
    repetitions = len(report.rows[0].repetitions)
    if repetitions == 1:
        return "No brackets: they need more than one repetition."
    line = "In brackets: 95 % confidence, over repetitions and prompts."
    if sure(repetitions) < SURE:
        line += (
            " Of several prompts at once, and where prompts hardly differ, they are the range of "
            f"the {repetitions} repetitions, which is {sure(repetitions):.0f} % confidence."
        )
    if any(ratio.met in {"likely", "doubtful"} for ratio in report.ratios):
        line += " What is likely or doubtful, more repetitions tell."
    return line


def _at_once(report: Report) -> str:
    """What the figures of several prompts at once have in them."""
    unseen = report.settings.get("unseen_prompts")
    if unseen:
        line = "Several prompts at once: nobody had asked them before, so prefill counts."
    else:
        line = (
            "Several prompts at once: they had been asked before, so that decoding counts, and "
            "little prefill."
        )
    shares: dict[str, list[float]] = {}
    for load in report.loads:
        if load.cached_share is not None:
            shares.setdefault(load.method, []).append(load.cached_share)
    if shares:
        told = (f"{name} {_range(found)}" for name, found in shares.items())
        line += f" Share of their tokens that was cached: {', '.join(told)}."
    others = [
        f"{load.method} {report.prompts - load.same_ids} with {load.concurrency}"
        for load in report.loads
        if load.same_ids is not None and load.same_ids < report.prompts
    ]
    if others:
        line += f" Texts other than plain's, of {report.prompts}: {', '.join(others)}."
    if PEERS["transformers"] in {load.method for load in report.loads} and not unseen:
        line += " Of transformers, which caches no prompts, decoding alone counts, batch by batch."
    return line


def _range(values: Sequence[float]) -> str:
    least, most = (f"{value:.2f}" for value in (min(values), max(values)))
    return least if least == most else f"{least} to {most}"


def _peers(report: Report) -> list[str]:
    """What peers draft with, where the drafter's weights are rounded."""
    rounded = report.settings.get("draft_quantize", "none")
    if rounded == "none":
        return []
    names = [row.name for row in report.rows]
    whole = [PEERS[key] for key in DRAFTING_PEERS if key not in ROUNDING_PEERS]
    lines = []
    if kept := [name for name in whole if name in names]:
        lines.append(
            f"The drafter's weights are rounded to {rounded}; {' and '.join(kept)} cannot, and "
            "have the draft model as it is stored."
        )
    if PEERS["llama-draft"] in names:
        lines.append(f"{PEERS['llama-draft']}: its draft model is rounded, too, in its own way.")
    return lines


def _about(delays: RoundTrips) -> str:
    hits = ", ".join(f"{share:.2f} for {length}" for length, share in delays.hits.items())
    besides = ", ".join(f"{ms:.2f}" for ms in delays.besides_ms.values())
    return (
        f"Round trips: plain decoding {delays.plain.value:.0f} tokens/s, half a step "
        f"{delays.half_step_ms:g} ms; the drafter takes {delays.drafter_token_ms:.2f} ms a token "
        f"and {delays.drafter_way_ms:.2f} ms besides; share of rounds drafted for ahead, by draft "
        f"length: {hits}; what such rounds take besides: {besides} ms. All of this was measured "
        "without added delay, and the prediction of the other rows (bench/rate_model.py) follows "
        "from it."
    )


def _ratios(report: Report) -> Cells:
    rows = [[one.name, spread(one.value), f"≥ {one.wanted:.2f}", one.met] for one in report.ratios]
    return Cells("Ratios", ("ratio", "value", "wanted", "met"), rows)


def spread(estimate: Estimate, digits: int = 2) -> str:
    """Return a figure and its interval, if it has one."""
    value, low, high = (f"{x:.{digits}f}" for x in (estimate.value, *estimate.within))
    return value if estimate.low is None else f"{value} [{low}–{high}]"


def figure(value: float | None) -> str:
    """Return a figure, or a dash where there is none."""
    return "–" if value is None else f"{value:.2f}"
