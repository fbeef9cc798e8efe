"""The sync client."""

from collections.abc import Mapping, Sequence
from typing import Self

import grpc

from paceline._accumulator import models
from paceline._base_client import (
    UNARY_TIMEOUT_S,
    BaseClient,
    detokenize_request,
    tokenize_request,
)
from paceline._channel import channel_options
from paceline._conversion import converted
from paceline._generation import Generation
from paceline._types import Model
from paceline.v1 import inference_pb2 as pb
from paceline.v1.inference_pb2_grpc import InferenceStub


class Client(BaseClient[Generation]):
    """A client of one gateway; safe to share between threads.

    Use it as a context manager, or call `close`: either cancels the generations still running.

    Args:
        address: The gateway as `host:port`; by default the environment's `PACELINE_ADDRESS`, else
            `localhost:7070`. Nothing is connected before the first call.

    Example:
        with paceline.Client() as client:
            print(client.generate("Once upon a time", max_tokens=64).result().text)
    """

    def __init__(self, address: str | None = None) -> None:
        super().__init__(address)
        self._channel = grpc.insecure_channel(self._address, options=channel_options(self._address))
        self._stub = InferenceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancels the generations still running and disconnects."""
        self._closed = True
        self._channel.close()

    def models(self) -> list[Model]:
        """Lists the models the deployment serves.

        Raises:
            RpcError: The subclass says what failed.
        """
        self._require_open()
        with converted(self._address):
            return models(self._stub.ListModels(pb.ListModelsRequest(), timeout=UNARY_TIMEOUT_S))

    def tokenize(
        self,
        text: str | None = None,
        *,
        messages: Sequence[Mapping[str, str]] | None = None,
        model: str | None = None,
    ) -> list[int]:
        """Returns the ids that `generate` would feed to the model.

        Args:
            text: Plain text. Give exactly one of text and messages.
            messages: A conversation, as for `generate`.
            model: A name that `models()` lists; None: the only one served.

        Raises:
            ArgumentError: There is not exactly one of text and messages.
            RpcError: The subclass says what failed.
        """
        request = tokenize_request(text, messages, model)
        self._require_open()
        with converted(self._address):
            return list(self._stub.Tokenize(request, timeout=UNARY_TIMEOUT_S).token_ids)

    def detokenize(self, token_ids: Sequence[int], *, model: str | None = None) -> str:
        """Returns the text of ids, special tokens left out.

        Args:
            token_ids: Ids of the model's tokenizer.
            model: A name that `models()` lists; None: the only one served.

        Raises:
            RpcError: The subclass says what failed.
        """
        request = detokenize_request(token_ids, model)
        self._require_open()
        with converted(self._address):
            return str(self._stub.Detokenize(request, timeout=UNARY_TIMEOUT_S).text)

    def _start(self, request: pb.GenerateRequest, timeout_s: float) -> Generation:
        with converted(self._address):
            call = self._stub.Generate(request, timeout=timeout_s)
        return Generation(call, self._address)
