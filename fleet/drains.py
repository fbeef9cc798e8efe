"""`paceline fleet drain`: retires a worker and follows it to its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.text import Text

from common.errors import Unavailable
from fleet.gateway_client import FleetClient
from fleet.snapshot import Snapshot, State, Tier

_LOOK_S = 0.5


def drain(
    client: FleetClient,
    address: str,
    grace_s: int,
    *,
    wait: bool,
    emit: Callable[[Any], None] | None,
) -> None:
    """Retires a worker.

    Args:
        client: The gateway that it is to be retired through.
        address: The worker's.
        grace_s: What running requests get; 0 is the worker's own setting.
        wait: Whether to follow it until it is gone.
        emit: Prints the outcome as JSON; None prints words.

    Raises:
        RpcError: The subclass says what failed.
        Unavailable: The gateway ended while the worker drains.
    """
    started = _incarnation(client.look()[0], address)
    remaining = client.drain(address, grace_s)
    screen = Console(quiet=emit is not None, markup=False, highlight=False)
    screen.print(f"{address} drains: {remaining} running", soft_wrap=True)
    if wait:
        _follow(client, address, started, screen)
        screen.print(f"{address} is gone", soft_wrap=True)
    if emit is not None:
        emit({"address": address, "remaining": remaining, "gone": wait})


def gone(snapshot: Snapshot, address: str, incarnation: int | None) -> bool:
    """Whether a process is no longer there, whatever has taken its address since."""
    worker = snapshot.worker(address)
    return (
        worker is None
        or worker.state is State.LOST
        or _incarnation(snapshot, address) != incarnation
    )


def _follow(client: FleetClient, address: str, incarnation: int | None, screen: Console) -> None:
    with (
        client.watch(_LOOK_S) as looks,
        screen.status("", spinner="dots") as spinner,
    ):
        for now in looks:
            if gone(now, address, incarnation):
                return
            worker = now.worker(address)
            if worker is not None and worker.load is not None:
                left = worker.load.running
                if worker.tier is Tier.VERIFIER:  # a drafter's are among those that it mirrors
                    left += worker.load.waiting
                spinner.update(Text(f"{address}: {left} still running"))
    raise Unavailable(f"the gateway at {client.address} ended; {address} may still drain")


def _incarnation(snapshot: Snapshot, address: str) -> int | None:
    worker = snapshot.worker(address)
    return worker.identity.incarnation if worker and worker.identity else None
