"""Streams to drafters whose messages take longer, as if the drafters were elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.v1 import drafter_pb2

from verifier import draft_stream


def move_away(round_trip_s: Mapping[str, float]) -> None:
    """Gives this process's streams a longer way.

    Args:
        round_trip_s: Seconds that a message and its answer take longer, by the drafter's address.
    """

    class FarLink(draft_stream.GrpcDraftLink):
        """A stream with a longer way."""

        def __init__(self, address: str, *args: Any, **options: Any) -> None:
            super().__init__(address, *args, **options)
            self._one_way_s = round_trip_s.get(address, 0.0) / 2

        async def _take_up(self, offers: Mapping[str, str]) -> draft_stream.LaneKind:
            """Leaves lanes alone: they would not be delayed."""
            return "none"

        def _send(self, message: drafter_pb2.DraftRequest) -> None:
            self._loop.call_later(self._one_way_s, super()._send, message)

        def _receive(self, response: drafter_pb2.DraftResponse) -> None:
            self._loop.call_later(self._one_way_s, super()._receive, response)

    draft_stream.GrpcDraftLink = FarLink  # type: ignore[misc]
