"""The asyncio client: the sync one's methods, awaited."""

import asyncio
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Self, SupportsIndex

import grpc

from paceline._accumulator import models
from paceline._base_client import (
    BaseClient,
    detokenize_request,
    tokenize_request,
)
from paceline._channel import connect
from paceline._conversion import awaited
from paceline._generation import AsyncGeneration
from paceline._resume import Resumption
from paceline._types import Model
from paceline.v1 import inference_pb2 as pb
from paceline.v1.inference_pb2_grpc import InferenceStub


class AsyncClient(BaseClient[AsyncGeneration]):
    """A client of one gateway, for one event loop: that of its first call.

    Use it as a context manager, or await `close`: either cancels the generations still running.

    Args:
        address: The gateway as `host:port`, or `host` alone for port 7070; by default the
            environment's `PACELINE_ADDRESS`, else `localhost:7070`. Nothing is connected before the
            first call.
        token: Bearer token of the gateway's operator, or a function that returns one for each call;
            by default the environment's `PACELINE_TOKEN`.
        tls: TLS to the gateway; by default with the authorities in the file that the
            environment's `PACELINE_CA` names (`system`: gRPC's own), else plaintext.
        insecure: Send a token to another machine in plaintext.

    Example:
        async with paceline.AsyncClient() as client:
            async for chunk in client.generate("Once upon a time", max_tokens=64):
                print(chunk.text, end="", flush=True)
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancels the generations still running and disconnects."""
        self._end()
        if "_channel" in self.__dict__:
            await self._channel.close()

    async def models(self, *, timeout: float | None = None) -> list[Model]:
        """Lists the models the deployment serves.

        Args:
            timeout: Seconds for the answer; None: one minute; `math.inf`: no limit here.

        Raises:
            ArgumentError: A value cannot be sent.
            RpcError: The subclass says what failed.
        """
        return models(await self._asked("ListModels", pb.ListModelsRequest(), timeout))

    async def tokenize(
        self,
        text: str | None = None,
        *,
        messages: Iterable[Mapping[str, object]] | None = None,
        model: str | None = None,
        timeout: float | None = None,
    ) -> list[int]:
        """Returns the ids that `generate` would feed to the model.

        Args:
            text: Plain text. Give exactly one of text and messages.
            messages: A conversation, as for `generate`.
            model: A name that `models()` lists; None: the only one served.
            timeout: Seconds for the answer; None: one minute; `math.inf`: no limit here.

        Raises:
            ArgumentError: A value cannot be sent, or there is not exactly one of text and messages.
            RpcError: The subclass says what failed.
        """
        request = tokenize_request(text, messages, model)
        return list((await self._asked("Tokenize", request, timeout)).token_ids)

    async def detokenize(
        self,
        token_ids: Iterable[SupportsIndex],
        *,
        model: str | None = None,
        timeout: float | None = None,
    ) -> str:
        """Returns the text of ids, special tokens left out.

        Args:
            token_ids: Ids of the model's tokenizer.
            model: A name that `models()` lists; None: the only one served.
            timeout: Seconds for the answer; None: one minute; `math.inf`: no limit here.

        Raises:
            ArgumentError: A value cannot be sent.
            RpcError: The subclass says what failed.
        """
        request = detokenize_request(token_ids, model)
        return str((await self._asked("Detokenize", request, timeout)).text)

    async def _asked(self, rpc: str, request: Any, timeout: float | None) -> Any:
        """Returns the answer to a call that is no generation."""
        self._require_open()
        call = getattr(self._stub, rpc)(request, **self._unary(timeout))
        with awaited(call, self._address):
            return await call

    def _require_open(self) -> None:
        super()._require_open()
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(
                "an AsyncClient needs a running event loop: call it in a coroutine, or use Client"
            ) from None
        if running is not self._loop:
            raise RuntimeError(
                "this AsyncClient belongs to another event loop, that of its first call; make one "
                "in each asyncio.run()"
            )

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    # Made on first use: a grpc.aio channel belongs to the loop that runs at its making, and a
    # client may well be made before there is one.
    @cached_property
    def _channel(self) -> grpc.aio.Channel:
        channel: grpc.aio.Channel = connect(self._address, self._security, grpc.aio)
        return channel

    @cached_property
    def _stub(self) -> InferenceStub:
        return InferenceStub(self._channel)

    def _start(
        self, request: pb.GenerateRequest, timeout_s: float, resume: bool
    ) -> AsyncGeneration:
        resumption = Resumption(request, timeout_s, lambda: resume and not self._closed)
        return self._tracked(AsyncGeneration(self._open, self._address, resumption))

    def _open(self, request: pb.GenerateRequest, timeout_s: float) -> Any:
        return self._stub.Generate(request, timeout=timeout_s, metadata=self._security.metadata())
