"""`paceline fleet status`: once, or as a table that follows the fleet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict
from typing import Any

from rich.live import Live

from fleet import tables
from fleet.gateway_client import FleetClient
from fleet.snapshot import Snapshot, Worker, tokens_per_s

Emit = Callable[[Any], None]
"""Prints one line of JSON."""


def once(client: FleetClient, interval_s: float, emit: Emit | None) -> None:
    """Shows the fleet after two looks at it.

    Args:
        client: Whom to ask.
        interval_s: Seconds between the two.
        emit: Prints JSON; None draws a table.
    """
    looks = client.look(2, interval_s)
    now = looks[-1]
    rates = tokens_per_s(looks[0], now)
    if emit is not None:
        emit(data(now, rates))
    else:
        tables.console().print(tables.status(now, rates))


def watch(client: FleetClient, interval_s: float, emit: Emit | None) -> None:
    """Follows the fleet until Ctrl-C, or until the gateway ends.

    Args:
        client: Whom to ask.
        interval_s: Seconds between two looks.
        emit: Prints a line of JSON for each; None keeps a table up to date, or prints one for each
            where there is no terminal.
    """
    screen = tables.console()
    with suppress(KeyboardInterrupt), client.watch(interval_s) as looks, ExitStack() as stack:
        table: Live | None = None
        if emit is None and screen.is_terminal:
            table = stack.enter_context(Live(console=screen, auto_refresh=False))
        before: Snapshot | None = None
        for now in looks:
            rates = tokens_per_s(before, now) if before else {}
            before = now
            if emit is not None:
                emit(data(now, rates))
            elif table is not None:
                table.update(tables.status(now, rates), refresh=True)
            else:
                screen.print(tables.status(now, rates))


def data(snapshot: Snapshot, rates: Mapping[str, float]) -> dict[str, Any]:
    """Returns the state of the fleet as JSON holds it."""
    workers = [_worker(worker, rates.get(worker.address)) for worker in snapshot.workers]
    return {"workers": workers, "pools": [asdict(pool) for pool in snapshot.pools]}


def _worker(worker: Worker, rate: float | None) -> dict[str, Any]:
    told = asdict(worker) | {"tokens_per_s": rate}
    if worker.identity is not None:  # digits: it has 64 bits, and many readers of JSON keep 53
        told["identity"]["incarnation"] = str(worker.identity.incarnation)
    return told
