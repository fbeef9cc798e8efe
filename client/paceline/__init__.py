"""Paceline's client: text generation with speculative decoding, over gRPC.

    import paceline

    with paceline.Client() as client:
        for chunk in client.generate("Once upon a time", max_tokens=64):
            print(chunk.text, end="", flush=True)

Only the names below are public; modules whose name begins with an underscore may change.
"""

from paceline import errors
from paceline._async_client import AsyncClient
from paceline._client import Client
from paceline._generation import AsyncGeneration, Generation
from paceline._security import Tls
from paceline._types import (
    AcceptanceRule,
    Chunk,
    FinishReason,
    Lookahead,
    Model,
    Result,
    Speculation,
    TokenSource,
    Usage,
)
from paceline._version import __version__
from paceline.errors import ArgumentError, ClientClosedError, PacelineError, RpcError

__all__ = [
    "AcceptanceRule",
    "ArgumentError",
    "AsyncClient",
    "AsyncGeneration",
    "Chunk",
    "Client",
    "ClientClosedError",
    "FinishReason",
    "Generation",
    "Lookahead",
    "Model",
    "PacelineError",
    "Result",
    "RpcError",
    "Speculation",
    "Tls",
    "TokenSource",
    "Usage",
    "__version__",
    "errors",
]
