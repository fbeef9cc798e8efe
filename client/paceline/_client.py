"""The sync client."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self, SupportsIndex
from weakref import WeakSet

import grpc

from paceline import _process
from paceline._accumulator import models
from paceline._base_client import (
    UNARY_TIMEOUT_S,
    BaseClient,
    detokenize_request,
    tokenize_request,
)
from paceline._channel import connect
from paceline._conversion import converted
from paceline._generation import Generation
from paceline._resume import Resumption
from paceline._security import Tls
from paceline._types import Model
from paceline.v1 import inference_pb2 as pb
from paceline.v1.inference_pb2_grpc import InferenceStub


class Client(BaseClient[Generation]):
    """A client of one gateway; safe to share between threads, and to inherit at a fork.

    Use it as a context manager, or call `close`: either cancels the generations that this process
    started and that still run.

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
        with paceline.Client() as client:
            print(client.generate("Once upon a time", max_tokens=64).result().text)
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | Callable[[], str] | None = None,
        tls: Tls | None = None,
        insecure: bool = False,
    ) -> None:
        super().__init__(address, token=token, tls=tls, insecure=insecure)
        # By process. What a fork brought here is kept and left alone: the threads that would serve
        # it are not here, and whoever closes it waits for them.
        self._lines: dict[object, _Line] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancels the generations still running and disconnects.

        Not in a signal handler: there `generation.cancel()`, or raise.
        """
        self._end()
        if (line := self._lines.get(_process.own())) is not None:
            line.channel.close()

    def models(self, *, timeout: float | None = None) -> list[Model]:
        """Lists the models the deployment serves.

        Args:
            timeout: Seconds for the answer; None: one minute; `math.inf`: no limit here.

        Raises:
            ArgumentError: A value cannot be sent.
            RpcError: The subclass says what failed.
        """
        return models(self._asked("ListModels", pb.ListModelsRequest(), timeout))

    def tokenize(
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
        return list(self._asked("Tokenize", request, timeout).token_ids)

    def detokenize(
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
        return str(self._asked("Detokenize", request, timeout).text)

    def _start(self, request: pb.GenerateRequest, timeout_s: float, resume: bool) -> Generation:
        resumption = Resumption(request, timeout_s, lambda: resume and not self._closed)
        generation = Generation(
            self._open, self._address, resumption, interruptible=self._interruptible
        )
        return self._tracked(generation)

    def _asked(self, rpc: str, request: Any, timeout: float | None) -> Any:
        """Returns the answer to a call that is no generation."""
        self._require_open()
        options = self._unary(timeout)
        with converted(self._address), self._interruptible():
            return self._line.ask(rpc, request, **options)

    @property
    def _line(self) -> "_Line":
        """What this process's calls go by from now on."""
        own = _process.own()
        return self._lines.get(own) or self._lines.setdefault(own, self._new_line())

    def _new_line(self) -> "_Line":
        return _Line(connect(self._address, self._security))

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Has the calls after what a signal's handler raised go by another channel.

        KeyboardInterrupt, SystemExit or any other: raised where gRPC takes a lock back, it leaves
        that locked, its thread waits for ever, and nothing more comes by the channel that it has.
        """
        try:
            yield
        except grpc.RpcError:  # what gRPC raises itself
            raise
        except BaseException as error:
            if isinstance(error, ValueError):  # so does gRPC say that the channel was closed
                self._require_open()
            former = self._line
            self._lines[_process.own()] = self._new_line()
            former.close_in_time()
            raise

    def _open(self, request: pb.GenerateRequest, timeout_s: float) -> Any:
        metadata, line = self._security.metadata(), self._line
        with self._interruptible():
            return line.generate(request, timeout=timeout_s, metadata=metadata)


class _Line:
    """A channel and the calls by it.

    Args:
        channel: To the gateway.
    """

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel, self.stub = channel, InferenceStub(channel)
        self._calls: WeakSet[Any] = WeakSet()
        self._asking: set[object] = set()

    def generate(self, request: pb.GenerateRequest, **options: Any) -> Any:
        """Opens a generation's stream."""
        call = self.stub.Generate(request, **options)
        self._calls.add(call)
        return call

    def ask(self, rpc: str, request: Any, **options: Any) -> Any:
        """Returns the answer to a call that is no generation."""
        asking = object()
        self._asking.add(asking)
        try:
            return getattr(self.stub, rpc)(request, **options)
        finally:
            self._asking.discard(asking)

    def close_in_time(self) -> None:
        """Closes the channel, by which nothing begins any more, when other threads' calls are over.

        Whoever lets go of it last closes it, and that may take for ever: a thread of its own does.
        """
        closing = threading.Timer(UNARY_TIMEOUT_S, self._close)
        closing.daemon = True
        closing.start()

    def _close(self) -> None:
        if self._asking or any(call.is_active() for call in list(self._calls)):
            self.close_in_time()
        else:
            self.channel.close()
