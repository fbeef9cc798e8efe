"""The public service `Inference`: here protobuf stops."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import grpc.aio
from paceline.v1 import inference_pb2, inference_pb2_grpc

from gateway.admission import Admission
from gateway.auth.authenticator import Authenticator
from gateway.auth.caller import Caller
from gateway.bill import billed
from gateway.fleet import Fleet
from gateway.generation import Generations
from gateway.reader import Reader
from gateway.time_limit import time_limited
from gateway.validation import check_count, check_ids, check_prompt, require_tokenizer
from gateway.watch import Watch
from gateway.wire import (
    ask_from_proto,
    check_size,
    events_to_proto,
    models_to_proto,
    prompt_from_proto,
)

SERVICE = inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name

# A request's 1 MiB, and as much for what a client has of a generation that it resumes: four bytes a
# token. It is read before the caller is known, and empty turns take 28 times as much memory there.
MAX_RECEIVED_BYTES = 2 << 20

Context = grpc.aio.ServicerContext[Any, Any]


class InferenceService(inference_pb2_grpc.InferenceServicer):
    """Serves generations, models and tokenisation.

    Args:
        fleet: The workers.
        generations: Runs them on the fleet.
        admission: Bounds how many requests run.
        max_generation_s: Seconds that a generation may take.
        authenticator: Tells callers apart. Nothing is looked at before it has.
        watch: Follows all calls.
        slow_reader_s: Seconds that a client may leave a message of its stream unread.
    """

    def __init__(
        self,
        fleet: Fleet,
        generations: Generations,
        admission: Admission,
        max_generation_s: float,
        authenticator: Authenticator,
        watch: Watch | None = None,
        slow_reader_s: float = 60.0,
    ) -> None:
        self._fleet = fleet
        self._generations = generations
        self._admission = admission
        self._max_generation_s = max_generation_s
        self._authenticator = authenticator
        self._watch = watch or Watch()
        self._slow_reader_s = slow_reader_s

    def register(self, server: grpc.aio.Server) -> list[str]:
        """Adds the service to a server and returns its name."""
        inference_pb2_grpc.add_InferenceServicer_to_server(self, server)
        return [SERVICE]

    async def Generate(self, request: inference_pb2.GenerateRequest, context: Context) -> None:
        """Streams one generation."""
        with self._watch.call("Generate"):
            began = self._watch.clock()
            caller = await self._caller(context)
            # Not before: metadata can have the call recorded, which is not for strangers.
            with (
                self._watch.generation(context.invocation_metadata(), began) as watched,
                self._admission.slot(caller) as account,
                billed(account) as bill,
            ):
                remaining_s = context.time_remaining()
                async with time_limited(remaining_s, self._max_generation_s) as timeout_s:
                    check_size(request)
                    ask = ask_from_proto(request)
                    watched.asked(ask)
                    # Written, not yielded: a cancelled call then unwinds from here, at once.
                    async with (
                        Reader(context, self._slow_reader_s) as reader,
                        aclosing(self._generations.run(ask, caller, timeout_s)) as news,
                    ):
                        async for events in news:
                            bill.add(events)
                            message = events_to_proto(events)
                            if message.HasField("started"):
                                reader.hold(message)
                            else:
                                await reader.write(message)
                            for event in events:
                                watched.saw(event)

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: Context
    ) -> inference_pb2.ListModelsResponse:
        """Names the models."""
        with self._watch.call("ListModels"):
            caller = await self._caller(context)
            return models_to_proto(self._fleet.catalogue.models(caller.models))

    async def Tokenize(
        self, request: inference_pb2.TokenizeRequest, context: Context
    ) -> inference_pb2.TokenizeResponse:
        """Turns text or chat messages into ids."""
        with self._watch.call("Tokenize"):
            caller = await self._caller(context)
            with self._admission.slot(caller):
                check_size(request)
                model = self._fleet.catalogue.resolve(request.model, caller.models)
                prompt = prompt_from_proto(request)
                check_prompt(prompt, model)
                tokenizing = self._generations.tokenizing
                ids = await tokenizing.prompt_ids(prompt, model.tokenizer, caller.tenant)
                check_ids(prompt.field, ids, model.vocab_size)
            return inference_pb2.TokenizeResponse(token_ids=ids)

    async def Detokenize(
        self, request: inference_pb2.DetokenizeRequest, context: Context
    ) -> inference_pb2.DetokenizeResponse:
        """Turns ids into text."""
        with self._watch.call("Detokenize"):
            caller = await self._caller(context)
            with self._admission.slot(caller):
                check_size(request)
                model = self._fleet.catalogue.resolve(request.model, caller.models)
                require_tokenizer(model, "token_ids")
                check_count("token_ids", request.token_ids, model.max_model_len)
                check_ids("token_ids", request.token_ids, model.vocab_size)
                assert model.tokenizer is not None
                tokenizing, ids = self._generations.tokenizing, request.token_ids
                text = await tokenizing.text_of(ids, model.tokenizer, caller.tenant)
            return inference_pb2.DetokenizeResponse(text=text)

    async def _caller(self, context: Context) -> Caller:
        return await self._authenticator.identify(context.invocation_metadata() or ())
