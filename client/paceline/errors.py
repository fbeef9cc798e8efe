"""Everything the SDK raises.

    PacelineError
    ├── ArgumentError (ValueError)          a value that cannot be sent; nothing was sent
    ├── ClientClosedError (RuntimeError)    the client was closed before the call
    └── RpcError                            what the gateway, or the way to it, answered
        ├── InvalidArgumentError            INVALID_ARGUMENT     mend the request
        ├── OutOfRangeError                 OUT_OF_RANGE         mend the request
        ├── UnauthenticatedError            UNAUTHENTICATED      say who you are
        ├── PermissionDeniedError           PERMISSION_DENIED    ask for access
        ├── NotFoundError                   NOT_FOUND            no such model or session
        ├── AlreadyExistsError              ALREADY_EXISTS       choose another name
        ├── FailedPreconditionError         FAILED_PRECONDITION  this deployment cannot do that
        ├── UnimplementedError              UNIMPLEMENTED        the server is older, or another one
        ├── ResourceExhaustedError          RESOURCE_EXHAUSTED   overloaded: retry later
        ├── UnavailableError                UNAVAILABLE          down or not reachable: retry
        ├── AbortedError                    ABORTED              a later turn ended this one
        ├── DeadlineExceededError           DEADLINE_EXCEEDED    `timeout` passed
        ├── CancelledError                  CANCELLED            cancelled, by either side
        ├── InternalError                   INTERNAL             a bug on the other side
        ├── DataLossError                   DATA_LOSS            a bug on the other side
        └── UnknownError                    UNKNOWN              a bug on the other side

A value of the wrong Python type is a plain `TypeError`. An asyncio client outside its event loop is
a plain `RuntimeError`, as is a generation that a fork brought to another process.
"""

from typing import ClassVar, Self

from grpc import StatusCode


class PacelineError(Exception):
    """Root of everything the SDK raises by itself."""


class ArgumentError(PacelineError, ValueError):
    """An argument has a value that cannot be sent.

    Args:
        field: Name of the argument.
        problem: What is wrong with it and what is allowed.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self._problem = problem

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:  # from one process to another
        return type(self), (self.field, self._problem)


class ClientClosedError(PacelineError, RuntimeError):
    """A closed client was used."""


class RpcError(PacelineError):
    """A call failed; the subclass says how. The message is the server's own where it sent one."""

    code: ClassVar[StatusCode]


class InvalidArgumentError(RpcError):
    """The request is wrong, or too large; the message names the field and what is allowed."""

    code = StatusCode.INVALID_ARGUMENT


class OutOfRangeError(RpcError):
    """The request reaches past what exists."""

    code = StatusCode.OUT_OF_RANGE


class UnauthenticatedError(RpcError):
    """The caller did not say who it is, or was not believed."""

    code = StatusCode.UNAUTHENTICATED


class PermissionDeniedError(RpcError):
    """The caller may not do that."""

    code = StatusCode.PERMISSION_DENIED


class NotFoundError(RpcError):
    """What the request names is not there."""

    code = StatusCode.NOT_FOUND


class AlreadyExistsError(RpcError):
    """What the request would create is there already."""

    code = StatusCode.ALREADY_EXISTS


class FailedPreconditionError(RpcError):
    """The request is sound, but this deployment cannot serve it."""

    code = StatusCode.FAILED_PRECONDITION


class UnimplementedError(RpcError):
    """The server does not know the call."""

    code = StatusCode.UNIMPLEMENTED


class ResourceExhaustedError(RpcError):
    """The deployment is full; retry later."""

    code = StatusCode.RESOURCE_EXHAUSTED


class UnavailableError(RpcError):
    """The gateway, or a part behind it, is down or cannot be reached; retry."""

    code = StatusCode.UNAVAILABLE


class AbortedError(RpcError):
    """A later request has taken the session over; a retry would end that one."""

    code = StatusCode.ABORTED


class DeadlineExceededError(RpcError):
    """The call's `timeout` passed."""

    code = StatusCode.DEADLINE_EXCEEDED


class CancelledError(RpcError):
    """The call was cancelled. Not `asyncio.CancelledError`: the task itself goes on."""

    code = StatusCode.CANCELLED


class InternalError(RpcError):
    """The other side has a bug, or broke the protocol."""

    code = StatusCode.INTERNAL


class DataLossError(RpcError):
    """The other side lost data for good."""

    code = StatusCode.DATA_LOSS


class UnknownError(RpcError):
    """The other side failed and did not say how."""

    code = StatusCode.UNKNOWN
