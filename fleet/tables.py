"""The fleet on a screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby

from paceline.cli.render import visible
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from fleet.finding import Finding, Severity
from fleet.snapshot import Measured, Snapshot, State, Tier, Worker

_WIDE = 140  # columns where no terminal says how many there are
_NARROW = 120  # fewer do not hold everything
_ADDRESS = 21  # of an address what stands in one piece: all of one of IPv4
_NAMELESS = "-"

_STYLES = {
    State.READY: "green",
    State.DRAINING: "yellow",
    State.BROKEN: "red",
    State.LOST: "red",
    State.UNKNOWN: "dim",
}
_MEASURES = ("stream", "sessions", "acceptance", "draft ms", "round trip ms", "gain")
_WIDE_MEASURES = ("sessions", "draft ms", "round trip ms")  # not on a narrow screen


class _Console(Console):
    """Spells out control characters in what workers call themselves; see `visible`."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Renders, also what stands in cells."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=visible(segment.text, self.file))


def console() -> Console:
    """Returns what to print tables on: as they are, an address may look like markup."""
    width = None if Console().is_terminal else _WIDE
    return _Console(width=width, markup=False, highlight=False)


def status(snapshot: Snapshot, rates: Mapping[str, float]) -> RenderableType:
    """Draws all workers, a table for each pool.

    Args:
        snapshot: The fleet.
        rates: Tokens a second by address, as far as they are known.
    """
    if not snapshot.workers:
        return Text("No worker is listed.")
    by_pool = groupby(snapshot.workers, key=lambda worker: (worker.tier, worker.pool))
    pools = [(tier, name, list(workers)) for (tier, name), workers in by_pool]
    return _Fitted(
        lambda narrow: Group(*(_pool(snapshot, *pool, rates, narrow=narrow) for pool in pools))
    )


def pairs(snapshot: Snapshot) -> RenderableType:
    """Draws every verifier with every drafter."""
    if not snapshot.pairs:
        return Text("No pair of a verifier and a drafter is known.")
    return _Fitted(lambda narrow: _pairs(snapshot, narrow=narrow))


def found(findings: Sequence[Finding]) -> RenderableType:
    """Draws what a doctor found."""
    if not findings:
        return Text("Nothing is wrong.", style="green")
    return Group(*(_finding(finding) for finding in findings))


def short_gpu(accelerator: str, device: str) -> str:
    """Names what computes in few words."""
    name = accelerator or device
    for word in ("NVIDIA ", "(R)", "(TM)", " Processor", " CPU"):
        name = name.replace(word, "")
    return name or _NAMELESS


class _Fitted:
    """Is drawn anew for each screen.

    Args:
        draw: Draws what a narrow screen, or another one, holds.
    """

    def __init__(self, draw: Callable[[bool], RenderableType]) -> None:
        self._draw = draw

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._draw(options.max_width < _NARROW)


def _pool(
    snapshot: Snapshot,
    tier: Tier,
    name: str,
    workers: list[Worker],
    rates: Mapping[str, float],
    *,
    narrow: bool,
) -> Table:
    table = _table(narrow)
    _add_addresses(table, "address", [worker.address for worker in workers])
    table.add_column("state", no_wrap=True, min_width=max(map(len, State)))
    for heading in ("model",) if narrow else ("GPU", "model"):
        table.add_column(heading, overflow="fold")
    for heading in ("run+wait", "KV", "batch", "step ms", "tok/s", "accepted"):
        if not (narrow and heading == "batch"):
            table.add_column(heading, justify="right", no_wrap=True, overflow="fold")
    table.title = f"{tier}/{name or _NAMELESS}"
    size = next((p for p in snapshot.pools if (p.tier, p.name) == (tier, name)), None)
    if size is not None:
        table.title += f": {size.ready} ready, the load calls for {size.desired}"
    for worker in workers:
        table.add_row(*_row(snapshot, worker, rates.get(worker.address), narrow=narrow))
    return table


def _row(
    snapshot: Snapshot, worker: Worker, rate: float | None, *, narrow: bool
) -> list[str | Text]:
    identity, load = worker.identity, worker.load
    cells: list[str | Text] = [worker.address, Text(worker.state, style=_STYLES[worker.state])]
    if not narrow:
        cells.append(short_gpu(identity.accelerator, identity.device) if identity else _NAMELESS)
    cells.append(identity.model if identity else _NAMELESS)
    if load is None:
        return [*cells, *[_NAMELESS] * (5 if narrow else 6)]
    return [
        *cells,
        f"{load.running}+{load.waiting}",
        f"{load.kv_use:.0%}",
        *([] if narrow else [f"{load.batch_occupancy:.0%}"]),
        f"{load.step_ms:.1f}",
        _NAMELESS if rate is None else f"{rate:.0f}",
        _best_acceptance(snapshot, worker),
    ]


def _best_acceptance(snapshot: Snapshot, worker: Worker) -> str:
    shares = [
        pair.measured.acceptance
        for pair in snapshot.pairs_of(worker)
        if pair.measured is not None and pair.measured.drafted_tokens
    ]
    return f"{max(shares):.0%}" if shares else _NAMELESS


def _pairs(snapshot: Snapshot, *, narrow: bool) -> Table:
    table = _table(narrow)
    _add_addresses(table, "verifier", [pair.verifier for pair in snapshot.pairs])
    _add_addresses(table, "drafter", [pair.drafter for pair in snapshot.pairs])
    if not narrow:
        table.add_column("fits", overflow="fold")
    table.add_column("offered", no_wrap=True)
    shown = [heading for heading in _MEASURES if not (narrow and heading in _WIDE_MEASURES)]
    for heading in shown:
        table.add_column(heading, justify="right")
    for pair in snapshot.pairs:
        offered = Text("yes" if pair.offered else "no")
        fits = Text(f"no: {pair.misfit}", style="red") if pair.misfit else Text("yes")
        unfit = Text("misfit", style="red") if pair.misfit else offered
        measures = dict(zip(_MEASURES, _measures(pair.measured), strict=True))
        cells = [unfit] if narrow else [fits, offered]
        cells += [Text(measures[heading]) for heading in shown]
        table.add_row(pair.verifier, pair.drafter, *cells)
    return table


def _measures(measured: Measured | None) -> list[str]:
    if measured is None:
        return [_NAMELESS] * len(_MEASURES)
    known = measured.drafted_tokens > 0
    way = "gRPC" if measured.lane == "none" else measured.lane or "up"
    return [
        way if measured.alive else "down",
        str(measured.sessions),
        f"{measured.acceptance:.0%}" if known else _NAMELESS,
        f"{measured.draft_ms:.2f}" if measured.draft_ms else _NAMELESS,
        f"{measured.round_trip_ms:.2f}" if measured.round_trip_ms else _NAMELESS,
        f"{measured.gain:.2f}x" if measured.gain else _NAMELESS,
    ]


def _finding(finding: Finding) -> Text:
    style = "red" if finding.severity is Severity.ERROR else "yellow"
    return Text.assemble(
        (f"{finding.severity}: ", style),
        finding.what,
        ("\n  why: ", "dim"),
        finding.why,
        ("\n  change: ", "dim"),
        finding.remedy,
    )


def _table(narrow: bool) -> Table:
    return Table(
        title_justify="left",
        header_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=narrow,
    )


def _add_addresses(table: Table, heading: str, addresses: list[str]) -> None:
    """Adds a column that other columns make room for."""
    width = min(max(map(len, [heading, *addresses])), _ADDRESS)
    table.add_column(heading, width=width, overflow="fold")
