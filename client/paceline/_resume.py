"""When a generation that failed is asked for again, and how long to wait before.

A gateway holds nothing that the client could not tell another one: the request, the seed that was
told at the start, and the ids received so far. With them any gateway of the deployment goes on
with the same text.
"""

import random
import time
from collections.abc import Callable

import grpc

from paceline._accumulator import Accumulator
from paceline._conversion import never_connected
from paceline.errors import DeadlineExceededError, RpcError
from paceline.v1 import inference_pb2 as pb

_FIRST_PAUSE_S = 0.1
_MOST_PAUSE_S = 2.0

# Before anything was received nothing is lost by failing: the caller may as well try again.
_FRESH_TRIES = 3
# Once text was shown, this long without any more of it.
_WINDOW_S = 20.0


class Resumption:
    """Follows one generation from failure to failure.

    Args:
        request: The generation.
        timeout_s: Seconds that it has in all.
        enabled: Says whether to ask again at all; not once the client is closed.
    """

    def __init__(
        self, request: pb.GenerateRequest, timeout_s: float, enabled: Callable[[], bool]
    ) -> None:
        self._request = request
        self._deadline = time.monotonic() + timeout_s
        self._enabled = enabled
        self._tries = 0  # since the last progress
        self._since = 0.0
        self._position = -1

    @property
    def left_s(self) -> float:
        """Seconds left of the generation's time."""
        return self._deadline - time.monotonic()

    def pause_s(self, error: RpcError, received: Accumulator) -> float | None:
        """Says how long to wait before asking again.

        Args:
            error: How the last call ended.
            received: What came so far.

        Returns:
            Seconds, or None where the error is the end.
        """
        if not self._enabled() or not (_lost(error) or self._full(error, received)):
            return None
        if not received.begun and self._position < 0 and never_connected(error):
            return None  # a wrong address is told at once
        now = time.monotonic()
        if received.responses > self._position:
            self._position, self._tries, self._since = received.responses, 0, now
        pause_s = random.uniform(0.5, 1.0) * min(_FIRST_PAUSE_S * 2**self._tries, _MOST_PAUSE_S)
        self._tries += 1
        hopeless = (
            now + pause_s > self._since + _WINDOW_S
            if received.begun
            else self._tries > _FRESH_TRIES
        )
        return None if hopeless or pause_s >= self.left_s else pause_s

    def _full(self, error: RpcError, received: Accumulator) -> bool:
        """Whether a gateway that was asked to go on with a text has no room for it now."""
        asked = received.begun and self._tries > 0 and self._position == received.responses
        return asked and error.code is grpc.StatusCode.RESOURCE_EXHAUSTED

    def request(self, received: Accumulator) -> pb.GenerateRequest:
        """Returns the request for what is still to come.

        Raises:
            DeadlineExceededError: It failed, and its time is up.
        """
        if self._tries > 0 and self.left_s <= 0:
            raise DeadlineExceededError("the gateway was lost and the timeout passed meanwhile")
        if not received.begun:
            return self._request
        request = pb.GenerateRequest()
        request.CopyFrom(self._request)
        received.describe(request)
        return request


def _lost(error: RpcError) -> bool:
    """Whether an error tells of the way or the gateway, and not of the request."""
    return error.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
