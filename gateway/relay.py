"""One generation on a verifier: the gateway's side of `Verifier.Generate`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import grpc.aio
from paceline.v1 import types_pb2, verifier_pb2

from common.errors import Cancelled, DeadlineExceeded, Unavailable
from common.rpc.convert import acceptance_to_proto, lookahead_to_proto, sampling_to_proto
from common.rpc.errors import from_rpc_error
from common.telemetry import span
from gateway.request import Committed, Complete, Order, Speculation, Usage
from gateway.workers import WorkerHandle

# The verifier's deadline comes this much before the client's, so that the client gets our
# status instead of its own timer's; no more than a share of what is left, where that is little.
_MARGIN_S, _MARGIN_SHARE = 0.05, 0.25


async def relay(
    verifier: WorkerHandle, order: Order, timeout_s: float
) -> AsyncGenerator[Committed, None]:
    """Runs an order on a verifier; closing the iterator cancels it there.

    Args:
        verifier: Where it runs.
        order: What to generate.
        timeout_s: What is left of the request's time.

    Yields:
        Committed tokens; the last with how it ended.

    Raises:
        PacelineError: What the verifier answered; Unavailable, naming the address, where it
            could not be reached or went away, or one of other numerics has taken its place. Its
            breaker has heard of the latter; whether an internal error speaks against it is for
            the caller to find out.
    """
    timeout_s -= min(_MARGIN_S, timeout_s * _MARGIN_SHARE)
    if timeout_s <= 0:
        raise DeadlineExceeded("the deadline passed before the verifier was called")
    peer, breaker = f"verifier {verifier.address}", verifier.breaker
    call = verifier.stub.Generate(_request(order), timeout=timeout_s, metadata=span.metadata())
    answered = False
    with verifier.in_flight(call):
        try:
            async for message in call:
                if not answered:  # what goes on says nothing of how new requests fare
                    breaker.succeeded()
                    answered = True
                yield _committed(message, order)
                if message.HasField("complete"):
                    return
        except grpc.aio.AioRpcError as error:
            mapped = from_rpc_error(error, peer)
            if isinstance(mapped, Cancelled):  # not by us: we would have left this loop
                mapped = Unavailable(f"{peer}: the connection was lost")
            if isinstance(mapped, Unavailable):
                breaker.failed()
            raise mapped from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling() or not call.cancelled():
                raise
            breaker.failed()
            raise Unavailable(f"{peer}: it fell silent") from error
    raise Unavailable(f"{peer}: the stream ended before the generation did")


def _request(order: Order) -> verifier_pb2.VerifierGenerateRequest:
    return verifier_pb2.VerifierGenerateRequest(
        request_id=order.request_id,
        prompt_ids=order.prompt_ids,
        max_tokens=order.max_tokens,
        sampling=sampling_to_proto(order.sampling),
        speculation=types_pb2.SpeculationOptions(
            method=order.method,
            draft_tokens=order.draft_tokens,
            acceptance=acceptance_to_proto(order.acceptance),
            lookahead=lookahead_to_proto(order.lookahead),
        ),
        stop_token_ids=order.stop_token_ids,
        ignore_eos=order.ignore_eos,
        session=order.session,
        epoch=order.epoch,
        cache_salt=order.cache_salt,
        numerics_fingerprint=order.numerics,
        drafters=[verifier_pb2.DrafterEndpoint(address=each) for each in order.drafters],
    )


def _committed(message: verifier_pb2.VerifierGenerateResponse, order: Order) -> Committed:
    tokens = message.tokens
    return Committed(
        tokens.ids,
        tokens.sources,
        tokens.rounds,
        tokens.drafted_tokens,
        tokens.cached_tokens,
        tokens.method,
        _complete(message.complete, order) if message.HasField("complete") else None,
    )


def _complete(message: verifier_pb2.VerifierComplete, order: Order) -> Complete:
    usage, stats = message.usage, message.speculation
    return Complete(
        finish_reason=message.finish_reason,
        usage=Usage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
        ),
        speculation=Speculation(
            method=stats.method,
            acceptance=order.acceptance,
            rounds=stats.rounds,
            drafted_tokens=stats.drafted_tokens,
            accepted_tokens=stats.accepted_tokens,
            accepted_per_position=tuple(stats.accepted_per_position),
            lossy=stats.lossy,
            accepted_by_method=dict(stats.accepted_by_method),
        ),
    )
