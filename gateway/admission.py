"""How many requests run at a time: what is over the limit is refused at once, never queued."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from common.errors import ResourceExhausted


class Admission:
    """Counts running requests.

    Args:
        max_concurrent: How many may run.

    Attributes:
        running: How many do.
    """

    def __init__(self, max_concurrent: int) -> None:
        self.running = 0
        self._max_concurrent = max_concurrent

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Holds a place while a request runs.

        Raises:
            ResourceExhausted: None is free.
        """
        if self.running >= self._max_concurrent:
            raise ResourceExhausted(
                f"{self.running} requests are running, which is this gateway's limit "
                "(max_concurrent); retry later"
            )
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
