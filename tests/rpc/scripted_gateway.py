"""A gateway that does what the prompt says: real gRPC on port 0, no model behind it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from paceline.v1 import inference_pb2 as pb
from paceline.v1 import types_pb2
from paceline.v1.inference_pb2_grpc import InferenceServicer, add_InferenceServicer_to_server

ACCEPTED = types_pb2.TOKEN_SOURCE_ACCEPTED
RECOVERED = types_pb2.TOKEN_SOURCE_RECOVERED
BONUS = types_pb2.TOKEN_SOURCE_BONUS

STARTED = pb.GenerateResponse(
    started=pb.GenerationStarted(request_id="r-1", model="tiny", seed=7, prompt_tokens=3)
)
CHUNKS = [
    pb.GenerateResponse(
        chunk=pb.GenerationChunk(text=text, token_ids=ids, sources=sources, text_lengths=lengths)
    )
    for text, ids, sources, lengths in [
        ("Once ", [11], [RECOVERED], [5]),
        ("upon ", [12, 13], [ACCEPTED, ACCEPTED], [2, 3]),
        ("", [14], [BONUS], [0]),
        ("a time", [], [], []),
    ]
]
COMPLETE = pb.GenerateResponse(
    complete=pb.GenerationComplete(
        finish_reason=types_pb2.FINISH_REASON_LENGTH,
        usage=types_pb2.Usage(prompt_tokens=3, completion_tokens=4, cached_tokens=1),
        speculation=types_pb2.SpeculationStats(
            method="draft",
            acceptance=types_pb2.ACCEPTANCE_COUPLED,
            rounds=2,
            drafted_tokens=4,
            accepted_tokens=2,
            accepted_per_position=[1, 1],
        ),
    )
)


class ScriptedGateway(InferenceServicer):
    """Does what the prompt, or a chat's last message, says.

    `fail:CODE` fails, `hang` streams one chunk and waits, `cut` ends too early, `lost` is whole and
    is lost before it says so, `smile` begins with one. Other calls wait for `answering`.
    """

    def __init__(self) -> None:
        self.address = ""
        self.requests: list[Any] = []
        self.hanging = threading.Event()
        self.cancelled = threading.Event()
        self.answering = threading.Event()
        self.answering.set()

    def Generate(self, request: Any, context: Any) -> Iterator[Any]:
        self.requests.append(request)
        chat = request.chat.messages
        told = chat[-1].content if chat else request.text
        self._maybe_fail(told, context)
        yield STARTED
        if told == "smile":
            yield pb.GenerateResponse(chunk=pb.GenerationChunk(text="🙂"))
        if told == "hang":
            yield from self._hang(context)
        yield from CHUNKS
        if told != "cut":
            yield COMPLETE
        if told == "lost":
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")

    def ListModels(self, request: Any, context: Any) -> Any:
        self.answering.wait(timeout=20)
        return pb.ListModelsResponse(
            models=[
                pb.ModelInfo(
                    name="tiny",
                    max_model_len=128,
                    vocab_size=64,
                    methods=["plain", "draft"],
                    has_tokenizer=True,
                    eos_token_ids=[2],
                )
            ]
        )

    def Tokenize(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        self._maybe_fail(request.text, context)
        self.answering.wait(timeout=20)
        return pb.TokenizeResponse(token_ids=request.text.encode())

    def Detokenize(self, request: Any, context: Any) -> Any:
        self.answering.wait(timeout=20)
        return pb.DetokenizeResponse(text=bytes(request.token_ids).decode())

    def _hang(self, context: Any) -> Iterator[Any]:
        context.add_callback(self.cancelled.set)
        yield CHUNKS[0]
        self.hanging.set()
        self.cancelled.wait(timeout=20)

    def _maybe_fail(self, text: str, context: Any) -> None:
        if text.startswith("fail:"):
            code = grpc.StatusCode[text.removeprefix("fail:")]
            context.abort(code, f"told to fail with {code.name}")


@contextmanager
def scripted_gateway() -> Iterator[ScriptedGateway]:
    """Serves until the block ends."""
    gateway = ScriptedGateway()
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    add_InferenceServicer_to_server(gateway, server)
    gateway.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield gateway
    finally:
        server.stop(grace=0).wait()
