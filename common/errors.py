"""The errors Paceline's services raise, and the gRPC status each one becomes.

    PacelineError                 INTERNAL
    ├── InvalidArgument           INVALID_ARGUMENT      mend the request; says which field and how
    ├── Unauthenticated           UNAUTHENTICATED       say who you are
    ├── PermissionDenied          PERMISSION_DENIED     this caller may not do that
    ├── NotFound                  NOT_FOUND             no such model or session
    ├── FailedPrecondition        FAILED_PRECONDITION   this deployment cannot do that
    ├── ResourceExhausted         RESOURCE_EXHAUSTED    overloaded: retry later, elsewhere
    ├── Aborted                   ABORTED               a later request took the session over
    ├── Unavailable               UNAVAILABLE           a part is down or draining: retry
    ├── DeadlineExceeded          DEADLINE_EXCEEDED     out of time
    ├── Cancelled                 CANCELLED             the caller went away
    ├── Stuck                     INTERNAL              a thread does not come back from a pass
    └── StartupError              FAILED_PRECONDITION   a command or service cannot start
        ├── ConfigError           unknown key, wrong type
        └── ModelError            missing, corrupt or unsupported model directory

Codes are gRPC's names as text, so that engines can raise these without importing grpc;
`common.rpc` maps them both ways.
"""

from __future__ import annotations

from typing import ClassVar


class PacelineError(Exception):
    """Root of the tree: a bug or a broken invariant unless a subclass says otherwise."""

    code: ClassVar[str] = "INTERNAL"


class InvalidArgument(PacelineError):
    """The caller must change the request.

    Args:
        field: Name of the field as it stands in the request.
        problem: What is wrong with it and what is allowed.
    """

    code: ClassVar[str] = "INVALID_ARGUMENT"

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


class Unauthenticated(PacelineError):
    """Who calls did not say who it is, or is not believed."""

    code: ClassVar[str] = "UNAUTHENTICATED"


class PermissionDenied(PacelineError):
    """Who calls may not do that."""

    code: ClassVar[str] = "PERMISSION_DENIED"


class NotFound(PacelineError):
    """What the request names is not here."""

    code: ClassVar[str] = "NOT_FOUND"


class FailedPrecondition(PacelineError):
    """The request is sound, but this deployment cannot serve it."""

    code: ClassVar[str] = "FAILED_PRECONDITION"


class ResourceExhausted(PacelineError):
    """No room now; retry later or elsewhere."""

    code: ClassVar[str] = "RESOURCE_EXHAUSTED"


class Aborted(PacelineError):
    """Someone else got there first, or later and for good."""

    code: ClassVar[str] = "ABORTED"

    def __init__(
        self, problem: str = "session_id: a later request has taken this session over"
    ) -> None:
        super().__init__(problem)


class Unavailable(PacelineError):
    """A needed part is down or draining; retry."""

    code: ClassVar[str] = "UNAVAILABLE"


class DeadlineExceeded(PacelineError):
    """The caller's time is up."""

    code: ClassVar[str] = "DEADLINE_EXCEEDED"


class Cancelled(PacelineError):
    """The caller went away."""

    code: ClassVar[str] = "CANCELLED"


class Stuck(PacelineError):
    """A thread does not come back from what it computes; its process has to end."""


class StartupError(PacelineError):
    """A command or service cannot start; shown without a traceback."""

    code: ClassVar[str] = "FAILED_PRECONDITION"


class ConfigError(StartupError):
    """A configuration key or value is wrong."""


class ModelError(StartupError):
    """A model directory is missing, corrupt, or of an architecture we cannot run."""


def reason(error: BaseException) -> str:
    """Why a file cannot be used, for messages that name it: the system's own would once more."""
    said = error.strerror if isinstance(error, OSError) else None
    return said or str(error) or type(error).__name__


def first_line(error: BaseException) -> str:
    """What another library's error says first, and what follows a colon there; its kind where it
    says nothing."""
    lines = filter(None, map(str.strip, str(error).splitlines()))
    first = next(lines, type(error).__name__)
    return f"{first} {next(lines, '')}".strip() if first.endswith(":") else first
