"""How long a generation may take: every one has a deadline, the client's or the gateway's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from common.errors import DeadlineExceeded


@asynccontextmanager
async def time_limited(remaining_s: float | None, most_s: float) -> AsyncIterator[float]:
    """Bounds a generation, a client that stopped reading included.

    Args:
        remaining_s: What is left of the client's time; None where it set no deadline.
        most_s: Seconds that a generation may take; the gateway's own limit.

    Yields:
        Seconds the generation has.

    Raises:
        DeadlineExceeded: The gateway's limit was reached.
    """
    if remaining_s is not None and remaining_s <= most_s:
        yield remaining_s  # gRPC ends the call then
        return
    try:
        async with asyncio.timeout(most_s):
            yield most_s
    except (TimeoutError, DeadlineExceeded):
        raise DeadlineExceeded(
            f"the generation took longer than {most_s:g} s, which is this gateway's limit "
            "(max_generation_s)"
        ) from None
