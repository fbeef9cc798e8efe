"""Who is inside a verifier's engine, running or waiting, and who is let in."""

from __future__ import annotations

import itertools

from common.errors import ResourceExhausted, Unavailable
from common.fair_share import over_share
from common.model.blocks import BlockManager
from common.model.kv_cache import KvLease
from verifier.config import EngineConfig
from verifier.sequence import Listener, Request, Sequence


class Intake:
    """Turns requests into sequences, and counts them until they leave. Any thread may call.

    Args:
        config: Sizes.
        blocks: The cache they lease from.
    """

    def __init__(self, config: EngineConfig, blocks: BlockManager) -> None:
        self.accepting = True
        """Whether requests are taken on."""
        self._config = config
        self._blocks = blocks
        self._inside: dict[int, Sequence] = {}
        self._tickets = itertools.count(1)

    def __len__(self) -> int:
        return len(self._inside)

    def take(self, request: Request, listener: Listener) -> Sequence:
        """Lets a request in that was found valid.

        Raises:
            ResourceExhausted: Too many wait already.
            Unavailable: Nobody is let in any more.
        """
        if not self.accepting:
            raise Unavailable("this verifier is draining; try another")
        self._check_room(request.cache_salt)
        lease = KvLease(self._blocks, request.cache_salt)
        sequence = Sequence(request, listener, lease, next(self._tickets))
        self._inside[sequence.ticket] = sequence
        return sequence

    def longest_wait_s(self, now: float) -> float:
        """Seconds since the first of those came that were in no step yet; 0 where there is none.

        Args:
            now: Seconds, of the monotonic clock.
        """
        inside = self._inside.copy().values()  # in order of arrival; a copy, as below
        arrivals = (each.arrived_at for each in inside if not each.stepped)
        return max(now - next(arrivals, now), 0.0)

    def leave(self, ticket: int) -> Sequence | None:
        """Counts a sequence out; None where it has left before, or never was here."""
        return self._inside.pop(ticket, None)

    def _check_room(self, salt: bytes) -> None:
        """Raises where there is no place, or the others' are left alone; salts name tenants."""
        inside = self._inside.copy().values()  # the engine's thread takes from it meanwhile
        places = self._config.max_running + self._config.max_waiting
        if len(inside) >= places:
            raise ResourceExhausted(
                f"{len(inside)} requests are running or waiting, which is all this verifier "
                "takes; retry later"
            )
        mine = sum(each.tenant == salt for each in inside)
        if salt and over_share(mine, len(inside), places):
            raise ResourceExhausted(
                f"{mine} requests of this tenant are running or waiting, and this verifier's "
                "last places are for others; retry later"
            )
