"""One generation under way: its chunks, its result, its cancellation.

One that is dropped, or whose iterator is abandoned, is cancelled on the server too.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, suppress
from queue import Empty, SimpleQueue
from typing import Any, Self

import grpc

from paceline import _process
from paceline._accumulator import Accumulator
from paceline._conversion import awaited, cancelled, converted
from paceline._resume import Resumption
from paceline._types import Chunk, Result
from paceline.errors import CancelledError, InternalError, RpcError
from paceline.v1 import inference_pb2 as pb


class BaseGeneration:
    """A call and what it has answered so far.

    Args:
        open_: Opens a stream for a request, with what is left of its time in seconds.
        address: Whom it calls, for error messages.
        resumption: Says whether to go on after a failure.
    """

    def __init__(
        self,
        open_: Callable[[pb.GenerateRequest, float], Any],
        address: str,
        resumption: Resumption,
    ) -> None:
        self._open = open_
        self._address = address
        self._resumption = resumption
        self._accumulator = Accumulator()
        self._ended = False
        self._complete = False
        self._process = _process.own()
        self._call = self._opened()

    def __del__(self) -> None:
        # gRPC does this for a sync call by itself, but an asyncio call is kept alive by its loop.
        if "_call" in self.__dict__:
            self._cancel_call()

    def cancel(self) -> None:
        """Stops the generation on every tier; does nothing once it has ended.

        Chunks and result that are asked for afterwards raise `errors.CancelledError`.
        """
        self._ended = True
        self._cancel_call()

    def _leave(self) -> None:
        """Cancels what is read no further; what a forked child reads in vain is its parent's."""
        if self._process == _process.own():
            self.cancel()

    def _cancel_call(self) -> None:
        if self._process == _process.own():  # a forked child would wait for locks of its parent's
            self._hang_up()

    def _hang_up(self) -> None:
        self._call.cancel()

    def _inherited_whole(self) -> bool:
        """Whether this is a forked child, and all of it had come before the fork.

        Raises:
            CancelledError: It was cancelled.
            RuntimeError: It had not; the threads that read it are not here.
        """
        if self._process == _process.own():
            return False
        if self._accumulator.result() is None:
            if self._ended:
                raise cancelled()
            raise RuntimeError(
                "this generation belongs to the process that started it; start one in this process"
            )
        return True

    def _opened(self) -> Any:
        with converted(self._address):
            request = self._resumption.request(self._accumulator)
            return self._open(request, self._resumption.left_s)

    def _came_whole(self) -> bool:
        """Whether a call that failed had nothing more to tell than that it had ended well."""
        if not self._ended:
            self._complete = self._accumulator.result() is not None
        return self._complete

    def _pause_s(self, error: RpcError) -> float:
        """Returns how long to wait before asking again; raises the error where it is the end."""
        if self._ended:  # what failed before fails alike
            raise cancelled() if isinstance(error, CancelledError) else error
        pause_s = self._resumption.pause_s(error, self._accumulator)
        if pause_s is None:
            raise error
        return pause_s

    def _reopen(self) -> None:
        if not self._ended:
            self._call = self._opened()
        if self._ended:  # cancelled in the pause, or just now
            self._cancel_call()
            raise cancelled()

    def _whole(self) -> Result:
        result = self._accumulator.result()
        if result is None:
            raise InternalError(
                f"{self._address} ended the stream before the generation was complete"
            )
        return result


class Generation(BaseGeneration):
    """A generation of `Client`, for one thread at a time; iterate over it once for its chunks.

    Leaving the loop early cancels it, as does dropping it or leaving it as a context manager.

    Args:
        open_: See `BaseGeneration`.
        address: See there.
        resumption: See there.
        interruptible: Entered around each wait, which a signal's handler may end by raising.
    """

    def __init__(
        self,
        open_: Callable[[pb.GenerateRequest, float], Any],
        address: str,
        resumption: Resumption,
        *,
        interruptible: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._interruptible = interruptible
        # Not an event: one that a signal's handler sets while it is being set waits for ever.
        self._awoken: SimpleQueue[None] = SimpleQueue()
        super().__init__(open_, address, resumption)

    def cancel(self) -> None:
        """Stops the generation on every tier; does nothing once it has ended.

        A signal handler may do so, too. Chunks and result that are asked for afterwards raise
        `errors.CancelledError`.
        """
        super().cancel()
        self._awoken.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.cancel()

    def __iter__(self) -> Iterator[Chunk]:
        try:
            while (response := self._read()) is not None:
                if (chunk := self._accumulator.add(response)) is not None:
                    yield chunk
        finally:
            self._leave()

    def result(self) -> Result:
        """Waits for the end and returns the whole, chunks already seen included.

        Raises:
            RpcError: The subclass says what failed.
            RuntimeError: It belongs to the process that this one was forked from.
        """
        for _ in self:
            pass
        return self._whole()

    def _read(self) -> pb.GenerateResponse | None:
        """Returns the next response, None after the last."""
        if self._inherited_whole():
            return None
        while True:
            try:
                with converted(self._address), self._interruptible():
                    return next(self._call, None)
            except RpcError as error:
                if self._came_whole():
                    return None
                with suppress(Empty):
                    self._awoken.get(timeout=self._pause_s(error))
                self._reopen()


class AsyncGeneration(BaseGeneration):
    """A generation of `AsyncClient`; iterate over it once for its chunks as they come.

    Leaving the loop early cancels it, as does dropping it or leaving it as a context manager.
    """

    def __init__(
        self,
        open_: Callable[[pb.GenerateRequest, float], Any],
        address: str,
        resumption: Resumption,
    ) -> None:
        self._awoken = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        super().__init__(open_, address, resumption)

    def _hang_up(self) -> None:
        # Both are for the loop's thread, wherever the generation is cancelled or dropped last.
        call, awoken = self._call, self._awoken

        def hang_up() -> None:
            call.cancel()
            awoken.set()  # from a pause

        if _running_loop() is self._loop or self._loop.is_closed():
            hang_up()
        else:
            with suppress(RuntimeError):  # closed just now
                self._loop.call_soon_threadsafe(hang_up)

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
            self._leave()

    async def result(self) -> Result:
        """Waits for the end and returns the whole, chunks already seen included.

        Raises:
            RpcError: The subclass says what failed.
            RuntimeError: It belongs to the process that this one was forked from.
        """
        async for _ in self:
            pass
        return self._whole()

    async def _read(self) -> pb.GenerateResponse | None:
        """Returns the next response, None after the last."""
        if self._inherited_whole():
            return None
        while True:
            try:
                with awaited(self._call, self._address):
                    response = await self._call.read()
                return None if response is grpc.aio.EOF else response
            except RpcError as error:
                if self._came_whole():
                    return None
                pause_s = self._pause_s(error)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._awoken.wait(), pause_s)
                self._reopen()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
