"""One generation under way: its chunks, its result, its cancellation.

One that is dropped, or whose iterator is abandoned, is cancelled on the server too.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, Self

import grpc

from paceline._accumulator import Accumulator
from paceline._conversion import converted, from_status
from paceline._types import Chunk, Result
from paceline.v1 import inference_pb2 as pb


class _BaseGeneration:
    """A call and what it has answered so far."""

    def __init__(self, call: Any, address: str) -> None:
        self._call = call
        self._address = address
        self._accumulator = Accumulator()

    def __del__(self) -> None:
        # gRPC does this for a sync call by itself, but an asyncio call is kept alive by its loop.
        self._call.cancel()

    def cancel(self) -> None:
        """Stops the generation on every tier; does nothing once it has ended.

        Chunks and result that are asked for afterwards raise `errors.CancelledError`.
        """
        self._call.cancel()

    def _whole(self) -> Result:
        result = self._accumulator.result()
        if result is None:
            details = f"{self._address} ended the stream before the generation was complete"
            raise from_status(grpc.StatusCode.INTERNAL, details, self._address)
        return result


class Generation(_BaseGeneration):
    """A generation of `Client`; iterate over it once for its chunks as they come.

    Leaving the loop early cancels it, as does dropping it or leaving it as a context manager.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.cancel()

    def __iter__(self) -> Iterator[Chunk]:
        try:
            with converted(self._address):
                for response in self._call:
                    if (chunk := self._accumulator.add(response)) is not None:
                        yield chunk
        finally:
            self.cancel()

    def result(self) -> Result:
        """Waits for the end and returns the whole, chunks already seen included.

        Raises:
            RpcError: The subclass says what failed.
        """
        for _ in self:
            pass
        return self._whole()


class AsyncGeneration(_BaseGeneration):
    """A generation of `AsyncClient`; iterate over it once for its chunks as they come.

    Leaving the loop early cancels it, as does dropping it or leaving it as a context manager.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.cancel()

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        try:
            while (response := await self._read()) is not None:
                if (chunk := self._accumulator.add(response)) is not None:
                    yield chunk
        finally:
            self.cancel()

    async def result(self) -> Result:
        """Waits for the end and returns the whole, chunks already seen included.

        Raises:
            RpcError: The subclass says what failed.
        """
        async for _ in self:
            pass
        return self._whole()

    async def _read(self) -> pb.GenerateResponse | None:
        """Returns the next response, None after the last."""
        try:
            with converted(self._address):
                response = await self._call.read()
        except asyncio.CancelledError as exc:
            # grpc.aio raises this for a call cancelled on our side too. Where nobody cancelled
            # the task, it must not look as if somebody had.
            task = asyncio.current_task()
            if task is None or task.cancelling() or not self._call.cancelled():
                raise
            details = "the generation was cancelled by this client"
            raise from_status(grpc.StatusCode.CANCELLED, details, self._address) from exc
        return None if response is grpc.aio.EOF else response
