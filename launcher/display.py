"""Shows services coming up: a live table at a terminal, a line per change anywhere else."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from launcher.service import Service, State

_MOST_WARNED = 32

MARKS = {
    State.WAITING: Text("·", style="dim"),
    State.SERVING: Text("●", style="green"),
    State.STOPPED: Text("○", style="dim"),
    State.FAILED: Text("✗", style="red"),
    State.LOST: Text("✗", style="red"),
}


class Display:
    """What `paceline up` and `paceline demo` show of the services.

    Args:
        console: Where to; the table is drawn live if it is a terminal.
        live: Whether to draw it there; lines of logs would tear it.
        quiet: Show nothing at all.
    """

    def __init__(self, console: Console, *, live: bool = True, quiet: bool = False) -> None:
        self._console = console
        self._quiet = quiet
        self._shown: dict[str, State] = {}
        self._warned: deque[str] = deque(maxlen=_MOST_WARNED)
        # One spinner for a service, kept: a new one each time would never turn.
        self._spinners: dict[str, Spinner] = {}
        draw = live and console.is_terminal and not quiet
        self._live = Live(console=console, refresh_per_second=12) if draw else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.settle()

    def settle(self) -> None:
        """Leave the table as it stands; from now on changes are shown as lines."""
        if self._live:
            self._live.stop()
            self._live = None

    def hush(self) -> None:
        """Show nothing from now on."""
        self.settle()
        self._quiet = True

    def update(self, services: Sequence[Service]) -> None:
        """Show the services as they are now; a `launcher.cluster.Watcher`."""
        if self._quiet:
            return
        self._warn(services)
        changed = [s for s in services if self._shown.get(s.name, State.WAITING) is not s.state]
        self._shown.update({s.name: s.state for s in services})
        if self._live:
            self._live.update(self._table(services))
            return
        for service in changed:
            self._console.print(Text(line(service)), soft_wrap=True)

    def _warn(self, services: Sequence[Service]) -> None:
        """Show what services warn of; what was shown lately is not repeated."""
        for service in services:
            for words in service.new_warnings():
                warning = f"{service.name:<9} warning   {words}"
                if warning not in self._warned:
                    self._warned.append(warning)
                    self._console.print(Text(warning, style="yellow"), soft_wrap=True)

    def _table(self, services: Sequence[Service]) -> Table:
        table = Table.grid(padding=(0, 2))
        for service in services:
            elapsed = f"{service.elapsed_s:5.1f} s" if service.process else ""
            table.add_row(
                self._mark(service),
                service.name,
                service.state.value,
                Text(service.address or service.about),
                f"pid {service.process.pid}" if service.process else "",
                elapsed,
            )
        return table

    def _mark(self, service: Service) -> RenderableType:
        if service.state is State.STARTING:
            return self._spinners.setdefault(service.name, Spinner("dots"))
        return MARKS[service.state]


def line(service: Service) -> str:
    """Return the service in one line of plain text."""
    words = [f"{service.name:<9}", f"{service.state.value:<9}"]
    if service.state is State.STARTING:
        words += [service.about]
    elif service.state is State.SERVING:
        words += [service.address, f"({service.took_s:.1f} s)"]
    if service.process:
        words.append(f"pid {service.process.pid}")
    if service.state is State.LOST and not service.needed:
        words.append("(requests go on without it)")
    return " ".join(word for word in words if word)
