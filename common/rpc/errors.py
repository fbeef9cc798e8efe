"""Maps `common.errors` to gRPC status and back: the only place where the two meet."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from common import errors
from common.telemetry.span import raised_in

log = logging.getLogger(__name__)

# A stream that is reset, by a proxy that lost whom it called, is INTERNAL to gRPC; a service's own
# INTERNAL says otherwise.
_RESET = "Received RST_STREAM"

_BY_CODE: dict[grpc.StatusCode, type[errors.PacelineError]] = {
    grpc.StatusCode[cls.code]: cls
    for cls in (
        errors.Unauthenticated,
        errors.PermissionDenied,
        errors.NotFound,
        errors.FailedPrecondition,
        errors.ResourceExhausted,
        errors.Aborted,
        errors.Unavailable,
        errors.DeadlineExceeded,
        errors.Cancelled,
    )
}


def from_rpc_error(error: grpc.aio.AioRpcError, peer: str | None = None) -> errors.PacelineError:
    """Turns a failed call to another service into the exception it stands for.

    Args:
        error: What the call raised.
        peer: Who was called, "verifier 127.0.0.1:7071"; put before messages that the transport
            wrote, which do not say whom they could not reach.

    Returns:
        The exception, to be raised by the caller.
    """
    details = error.details() or error.code().name.lower()
    if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
        field, _, problem = details.partition(": ")
        return errors.InvalidArgument(field, problem) if problem else _Plain(details)
    cls = _BY_CODE.get(error.code(), errors.PacelineError)
    if error.code() is grpc.StatusCode.INTERNAL and _RESET in details:
        cls = errors.Unavailable
    return cls(f"{peer}: {details}" if peer and cls is errors.Unavailable else details)


_UNREADABLE = object()

_MOST_BYTES = 2000
"""Of an error's message in UTF-8. Up to three times as much travels, in metadata, of which a client
takes 8 KiB: beyond that it may see RESOURCE_EXHAUSTED in place of the error."""


class _Plain(errors.InvalidArgument):
    """INVALID_ARGUMENT from a server that named no field."""

    def __init__(self, message: str) -> None:
        errors.PacelineError.__init__(self, message)
        self.field = ""


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Ends calls whose handler raised with the status of what it raised.

    Our own exceptions become their code and message. Anything else is a bug: the caller hears
    "internal error", the log gets the traceback.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wraps the method's handler."""
        handler = await continuation(handler_call_details)
        return handler and _wrap(handler, str(handler_call_details.method))


def _wrap(handler: Any, method: str) -> Any:
    kind = ("stream" if handler.request_streaming else "unary") + (
        "_stream" if handler.response_streaming else "_unary"
    )
    inner = getattr(handler, kind)
    outer = _generator(inner, method) if inspect.isasyncgenfunction(inner) else _call(inner, method)
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    read = handler.request_deserializer
    return make(
        outer,
        request_deserializer=read if handler.request_streaming else _lenient(read),
        response_serializer=handler.response_serializer,
    )


def _lenient(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Lets what is no message through to the handler: gRPC would answer UNKNOWN and log a
    traceback, and a stranger could fill the log with those."""

    def lenient(data: bytes) -> Any:
        try:
            return read(data)
        except DecodeError:
            return _UNREADABLE

    return lenient


def _require_readable(request: Any) -> None:
    if request is _UNREADABLE:
        raise errors.InvalidArgument("request", "must be a message of this call's type")


def _call(inner: Callable[..., Awaitable[Any]], method: str) -> Callable[..., Awaitable[Any]]:
    async def handle(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            _require_readable(request)
            return await inner(request, context)
        except Exception as error:
            await _abort(error, context, method, request)

    return handle


def _generator(
    inner: Callable[..., AsyncIterator[Any]], method: str
) -> Callable[..., AsyncIterator[Any]]:
    async def handle(
        request: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        try:
            _require_readable(request)
            async with aclosing(inner(request, context)) as messages:  # type: ignore[type-var]
                async for message in messages:
                    yield message
        except Exception as error:
            await _abort(error, context, method, request)

    return handle


async def _abort(
    error: Exception, context: grpc.aio.ServicerContext[Any, Any], method: str, request: Any
) -> NoReturn:
    if isinstance(error, grpc.aio.BaseError):  # gRPC's own: aborted already, or the server stopped
        raise error
    if isinstance(error, errors.PacelineError):
        await context.abort(grpc.StatusCode[error.code], _bounded(str(error)))
    log.error("handler failed", extra=_names(method, request, error), exc_info=error)
    await context.abort(grpc.StatusCode.INTERNAL, "internal error")


def _names(method: str, request: Any, error: Exception) -> dict[str, str]:
    """What a call goes by in logs."""
    names, span = {"method": method}, raised_in(error)
    if request_id := getattr(request, "request_id", ""):
        names["request"] = request_id
    return names | span.names if span else names


def _bounded(message: str) -> str:
    data = message.encode()
    if len(data) <= _MOST_BYTES:
        return message
    return data[:_MOST_BYTES].decode(errors="ignore") + " …"
