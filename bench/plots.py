"""A report as pictures, where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from bench.report import Load, Report, Row
from bench.round_trips import RoundTrips

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bench.waits import Line

DPI = 120
CROWDED = 30
"""Times the lowest number of an axis, from which on there is no room for words at all its marks."""
MARKS = "os^vDP*"
"""Of lines whose colours are alike to some eyes."""


def available() -> bool:
    """Return whether pictures can be drawn."""
    return find_spec("matplotlib") is not None


def draw(report: Report, stem: Path) -> list[Path]:
    """Draw what the report has figures for.

    Args:
        report: The figures.
        stem: What the files' names begin with.

    Returns:
        The files, PNG.
    """
    written = [_save(stem, "speedup", lambda axes: _speedups(axes, report.rows))]
    if len({load.concurrency for load in report.loads}) > 1:
        written.append(_save(stem, "concurrency", lambda axes: _loads(axes, report.loads)))
    if delays := report.round_trips:
        written.append(_save(stem, "round-trip", lambda axes: _round_trips(axes, delays)))
    return written


def draw_waits(lines: Sequence[Line], path: Path) -> None:
    """Draw what users wait for, by the rate of requests.

    Args:
        lines: The figures.
        path: The file, of a format that its name ends with.
    """
    _draw(
        path,
        lambda axes: _waits(axes, lines, "first", "to the first token, ms"),
        lambda axes: _waits(axes, lines, "token", "for each further token, ms"),
    )


def _save(stem: Path, name: str, plot: Callable[[Axes], None]) -> Path:
    path = stem.with_name(f"{stem.name}-{name}.png")
    _draw(path, plot)
    return path


def _draw(path: Path, *plots: Callable[[Axes], None]) -> None:
    """Draw some pictures side by side."""
    # Not pyplot: it keeps figures alive and looks for a screen.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    for plot, axes in zip(plots, figure.subplots(ncols=len(plots), squeeze=False)[0], strict=True):
        plot(axes)
        axes.grid(axis="y", alpha=0.3)
    figure.savefig(path, dpi=DPI)


def _speedups(axes: Axes, rows: Sequence[Row]) -> None:
    """Bars by domain, one colour a variant, with their intervals."""
    domains = list(rows[0].speedup_by_domain)
    width = 0.8 / len(rows)
    colours = _colours(len(rows))
    for index, row in enumerate(rows):
        estimates = list(row.speedup_by_domain.values())
        axes.bar(
            [place + (index - (len(rows) - 1) / 2) * width for place in range(len(domains))],
            [estimate.value for estimate in estimates],
            width,
            yerr=[
                [max(estimate.value - estimate.within[0], 0.0) for estimate in estimates],
                [max(estimate.within[1] - estimate.value, 0.0) for estimate in estimates],
            ],
            label=row.name,
            color=colours[index],
            error_kw={"elinewidth": 0.8},
        )
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(domains)), domains)
    axes.set_ylabel("speed-up over plain")
    _legend(axes)


def _loads(axes: Axes, loads: Sequence[Load]) -> None:
    """One line a method, one colour and mark each."""
    methods = list(dict.fromkeys(load.method for load in loads))
    for method, colour, mark in zip(methods, _colours(len(methods)), cycle(MARKS), strict=False):
        mine = sorted(
            (load for load in loads if load.method == method), key=lambda load: load.concurrency
        )
        counts = [load.concurrency for load in mine]
        rates = [load.tokens_per_s for load in mine]
        axes.plot(counts, [r.value for r in rates], marker=mark, color=colour, label=method)
        low, high = ([rate.within[end] for rate in rates] for end in range(2))
        axes.fill_between(counts, low, high, color=colour, alpha=0.15)
    counts = sorted({load.concurrency for load in loads})
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_xlabel("prompts at once")
    axes.set_ylabel("tokens/s, all together")
    axes.set_ylim(bottom=0)
    _legend(axes)


def _round_trips(axes: Axes, delays: RoundTrips) -> None:
    """Measured with its interval, predicted, and plain decoding."""
    at = [row.round_trip_ms for row in delays.rows]
    measured = [row.measured for row in delays.rows]
    axes.plot(at, [m.value for m in measured], marker="o", label="draft, measured")
    low, high = ([rate.within[end] for rate in measured] for end in range(2))
    axes.fill_between(at, low, high, alpha=0.15)
    foretold = [(r.round_trip_ms, r.predicted) for r in delays.rows if r.predicted is not None]
    axes.plot(*zip(*foretold, strict=True), linestyle="--", label="draft, predicted")
    axes.axhline(delays.plain.value, color="black", linewidth=0.8, label="plain")
    axes.set_xlabel("round trip added between verifier and drafter, ms")
    axes.set_ylabel("tokens/s")
    axes.set_ylim(bottom=0)
    axes.legend()


def _waits(axes: Axes, lines: Sequence[Line], what: str, label: str) -> None:
    """Two lines a method: the median, and dashed what 99 % of the requests wait at most."""
    methods = list(dict.fromkeys(line.method for line in lines))
    for method, colour, mark in zip(methods, _colours(len(methods)), cycle(MARKS), strict=False):
        mine = sorted((line for line in lines if line.method == method), key=lambda line: line.rate)
        rates, spreads = [line.rate for line in mine], [getattr(line, what) for line in mine]
        middle, most = ([getattr(spread, end) for spread in spreads] for end in ("p50", "p99"))
        axes.plot(rates, middle, marker=mark, color=colour, label=method)
        axes.plot(rates, most, marker=mark, color=colour, linestyle="--")
    axes.set_xlabel("requests a second")
    axes.set_ylabel(f"{label} (dashed: 99 %)")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    low, high = axes.get_ylim()
    axes.yaxis.set_minor_formatter("{x:g}" if high < CROWDED * low else "")
    axes.legend()


def _colours(count: int) -> list[tuple[float, ...]]:
    """So many colours, those of a pair side by side; twenty differ."""
    from matplotlib import colormaps

    map_ = colormaps["tab20"]
    return [map_(index % map_.N) for index in range(count)]


def _legend(axes: Axes) -> None:
    """Many names, below all else."""
    axes.figure.legend(fontsize="small", ncols=4, loc="outside lower center")
