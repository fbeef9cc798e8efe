"""The one place where gRPC's errors become this SDK's."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from paceline import errors
from paceline._proxy import proxy_variable

CLASS_OF_CODE: dict[grpc.StatusCode, type[errors.RpcError]] = {
    cls.code: cls for cls in errors.RpcError.__subclasses__()
}

# How gRPC words a connection that never came to be; a server's own UNAVAILABLE says otherwise.
_NEVER_CONNECTED = (
    "failed to connect",
    "errors resolving",
    "DNS resolution failed",
    "Name resolution failed",
)
# Of these, what was taken and closed at once: so does a proxy whose gateway is not there yet, and
# so does a gateway that misses TLS, or a certificate.
_CLOSED = re.compile("Socket closed|Connection reset by peer")
_NOT_SECURED = re.compile("[Hh]andshake|CERTIFICATE_VERIFY_FAILED|Hostname Verification")
_HANDSHAKE = re.compile(r"OPENSSL_internal:(?P<reason>.*)")
# A stream that is reset, by a proxy that lost the gateway, is INTERNAL to gRPC; a server's own
# INTERNAL says otherwise.
_RESET = "Received RST_STREAM"
# Answers without a status of gRPC.
_NO_GATEWAY = re.compile(r"Received http2 header with status: |Stream removed($| \(Data frame )")
_LOOKUP = re.compile(r"lookup error:(?:address lookup failed for \S*: )?(?P<reason>.*)\]$")
# Words of gRPC on our side, and of the gateway's, whose limit may be another.
_TOO_LARGE = re.compile(
    r"(?P<side>CLIENT: Sent|SERVER: Received) message larger than max "
    r"\((?P<size>\d+) vs\. (?P<most>\d+)\)"
)


@contextmanager
def converted(address: str) -> Iterator[None]:
    """Raises what fails inside as the exception of `paceline.errors` that fits.

    Args:
        address: The server called, for messages about the way to it.

    Raises:
        errors.RpcError: From the `grpc.RpcError` (of a sync or an asyncio call) raised inside.
    """
    try:
        yield
    except grpc.RpcError as exc:
        raise _from_grpc(exc, address) from exc


@contextmanager
def awaited(call: grpc.aio.Call, address: str) -> Iterator[None]:
    """As `converted`, around the wait for an asyncio call.

    For one that was cancelled on our side gRPC raises what it raises for a cancelled task. Where
    nobody cancelled the task, it must not look as if somebody had.
    """
    try:
        yield
    except grpc.RpcError as exc:
        raise _from_grpc(exc, address) from exc
    except asyncio.CancelledError as exc:
        task = asyncio.current_task()
        if task is None or task.cancelling() or not call.cancelled():
            raise
        raise cancelled() from exc


def cancelled() -> errors.CancelledError:
    """Builds the exception for what was cancelled on our side."""
    return errors.CancelledError("the call was cancelled by this client")


def never_connected(error: errors.RpcError) -> bool:
    """Whether a call failed because nobody takes connections at the address."""
    details = getattr(error.__cause__, "details", lambda: None)() or ""
    return bool(details.startswith(_NEVER_CONNECTED) and not _CLOSED.search(details))


def _from_grpc(error: grpc.RpcError, address: str) -> errors.RpcError:
    # Both kinds of call raise an RpcError that is also a grpc.Call, which has these two.
    code = error.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN
    details = error.details() if hasattr(error, "details") else str(error)
    return from_status(code, details or "", address)


def from_status(code: grpc.StatusCode, details: str, address: str) -> errors.RpcError:
    """Builds the exception for one status.

    Args:
        code: Any code but OK.
        details: The server's message, or gRPC's own.
        address: The server called.
    """
    if sizes := _TOO_LARGE.fullmatch(details):
        # RESOURCE_EXHAUSTED, says gRPC; but who tries again later fails again.
        fewer = " (for most gateways far fewer)" if sizes["side"].startswith("CLIENT") else ""
        return errors.InvalidArgumentError(
            f"the request is too large: it must have at most {sizes['most']} bytes{fewer}, "
            f"got {sizes['size']}"
        )
    if code is grpc.StatusCode.INTERNAL and _RESET in details:
        return errors.UnavailableError(f"the connection to {address} was lost ({details})")
    cls = CLASS_OF_CODE.get(code, errors.UnknownError)
    return cls(_message(code, details, address))


def _message(code: grpc.StatusCode, details: str, address: str) -> str:
    if code is grpc.StatusCode.UNAVAILABLE and details.startswith(_NEVER_CONNECTED):
        if variable := proxy_variable(address):
            return (
                f"{_unreachable(details, address)}; or the proxy that {variable} names is at fault"
            )
        return _unreachable(details, address)
    if code is grpc.StatusCode.UNIMPLEMENTED and details == "Method not found!":
        return f"the server at {address} does not know this call; is it a Paceline gateway?"
    if _NO_GATEWAY.match(details):
        if code is grpc.StatusCode.UNAVAILABLE:  # gRPC's for 429, 502, 503 and 504
            return f"a proxy at {address} has no gateway for it now ({details})"
        return f"{address} answered as no gateway does ({details}); is it one?"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED and "Deadline Exceeded" in details:
        return f"no complete answer from {address} in time; raise the timeout to wait longer"
    return details or code.name


def _unreachable(details: str, address: str) -> str:
    if _CLOSED.search(details):
        return (
            f"something listens at {address}, but closes connections "
            f"({_last_error(details)}): it is not up yet, or it expects TLS or another "
            "certificate; see PACELINE_CA, PACELINE_CERT and PACELINE_KEY"
        )
    if _NOT_SECURED.search(details):
        return (
            f"something listens at {address}, but its certificates or TLS settings and this "
            f"client's do not seem to agree ({_last_error(details)}); see PACELINE_CA, "
            "PACELINE_CERT and PACELINE_KEY"
        )
    return (
        f"no Paceline gateway answers at {address} ({_last_error(details)}); "
        "start one with `paceline up`, or give another address (PACELINE_ADDRESS)"
    )


def _last_error(details: str) -> str:
    """Keeps the reason out of gRPC's list of addresses and attempts."""
    details = details.removesuffix(": OK")  # the socket, where TLS failed
    if found := _LOOKUP.search(details) or _HANDSHAKE.search(details):
        return found["reason"]
    return details.rstrip(": ").rpartition(": ")[2]
