"""The fleet on a screen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from paceline.cli.render import visible
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from fleet.finding import Finding, Severity
from fleet.snapshot import Measured, Snapshot, State, Tier, Worker

_WIDE = 140  # columns where no terminal says how many there are
_NAMELESS = "-"

_STYLES = {
    State.READY: "green",
    State.DRAINING: "yellow",
    State.BROKEN: "red",
    State.LOST: "red",
    State.UNKNOWN: "dim",
}
_COLUMNS = (
    "address",
    "state",
    "GPU",
    "model",
    "run+wait",
    "KV",
    "batch",
    "step ms",
    "tok/s",
    "accepted",
)
_TEXT_COLUMNS = 4  # of those: figures are set to the right


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
    pools = groupby(snapshot.workers, key=lambda worker: (worker.tier, worker.pool))
    return Group(
        *(_pool(snapshot, tier, name, list(workers), rates) for (tier, name), workers in pools)
    )


def pairs(snapshot: Snapshot) -> RenderableType:
    """Draws every verifier with every drafter."""
    if not snapshot.pairs:
        return Text("No pair of a verifier and a drafter is known.")
    table = _table("verifier", "drafter", "fits", "offered", right=0)
    for heading in ("stream", "sessions", "acceptance", "draft ms", "round trip ms", "gain"):
        table.add_column(heading, justify="right")
    for pair in snapshot.pairs:
        fits = Text(f"no: {pair.misfit}", style="red") if pair.misfit else Text("yes")
        offered = "yes" if pair.offered else "no"
        table.add_row(pair.verifier, pair.drafter, fits, offered, *_measures(pair.measured))
    return table


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


def _pool(
    snapshot: Snapshot, tier: Tier, name: str, workers: list[Worker], rates: Mapping[str, float]
) -> Table:
    table = _table(*_COLUMNS, right=len(_COLUMNS) - _TEXT_COLUMNS)
    table.title = f"{tier}/{name or _NAMELESS}"
    size = next((p for p in snapshot.pools if (p.tier, p.name) == (tier, name)), None)
    if size is not None:
        table.title += f": {size.ready} ready, the load calls for {size.desired}"
    for worker in workers:
        table.add_row(*_row(snapshot, worker, rates.get(worker.address)))
    return table


def _row(snapshot: Snapshot, worker: Worker, rate: float | None) -> list[str | Text]:
    identity, load = worker.identity, worker.load
    cells: list[str | Text] = [worker.address, Text(worker.state, style=_STYLES[worker.state])]
    cells += (
        [short_gpu(identity.accelerator, identity.device), identity.model]
        if identity
        else ([_NAMELESS] * 2)
    )
    if load is None:
        return [*cells, *[_NAMELESS] * 6]
    return [
        *cells,
        f"{load.running}+{load.waiting}",
        f"{load.kv_use:.0%}",
        f"{load.batch_occupancy:.0%}",
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


def _measures(measured: Measured | None) -> list[str]:
    if measured is None:
        return [_NAMELESS] * 6
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


def _table(*headings: str, right: int) -> Table:
    """Makes a table whose last `right` columns are figures."""
    table = Table(title_justify="left", header_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for index, heading in enumerate(headings):
        figures = index >= len(headings) - right
        table.add_column(
            heading, justify="right" if figures else "left", no_wrap=figures, overflow="fold"
        )
    return table
