"""Structured logs: one JSON object a line on stderr.

A message is the event's name; everything else travels in `extra`:
`log.info("verifier lost", extra={"address": address})`. Where a span runs, its ids join the line to
its trace. Prompt and output text never go in.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from datetime import UTC, datetime
from typing import Any

from common.telemetry import span

# What every LogRecord carries; anything beyond it came in through `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}

_STRANGERS = frozenset({"UnicodeDecodeError", "ExecuteBatchError"})
"""What gRPC raises, and logs, of which a caller is the cause."""


class JsonFormatter(logging.Formatter):
    """Renders a record as {"ts", "level", "service", "event", extras…, "trace_id", "span_id"}.

    An extra of one of the first four names gets an underscore after it.
    """

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """Returns the record as one line of JSON."""
        line: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "service": self._service,
            "event": record.getMessage(),
        }
        extras = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        line |= {f"{n}_" if n in line else n: _plain(value) for n, value in extras.items()}
        if (ids := span.current()) is not None:
            line |= ids.names
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """A value as JSON has it, which knows no infinity and has text for names."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _not_a_strangers(record: logging.LogRecord) -> bool:
    """Whether a line is not gRPC's about what a caller did.

    Its metadata are no UTF-8, which is read all the same, or it left while it was written to. Such
    a line has a traceback, and all the metadata say: strangers could fill the log, and a token
    would be in it.
    """
    raised = record.exc_info[0] if record.exc_info else None
    return not (raised and raised.__name__ in _STRANGERS and record.name.startswith("grpc."))


def _without_headers(record: logging.LogRecord) -> bool:
    """Takes out what OpenTelemetry quotes of headers that it cannot read: one may be a token."""
    if record.name == "opentelemetry.util.re":
        record.args = ("…",)
    return True


def configure(service: str, level: str) -> None:
    """Sends all logging of the process to stderr as JSON lines.

    Args:
        service: Name of the service: "gateway".
        level: Least severity sent: "debug", "info", "warning" or "error".
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(service))
    handler.addFilter(_not_a_strangers)
    handler.addFilter(_without_headers)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
