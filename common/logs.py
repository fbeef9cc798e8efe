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
    """A value as JSON has it, which knows no infinity."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _not_a_strangers(record: logging.LogRecord) -> bool:
    """Whether a line is not gRPC's about metadata that are no UTF-8, which it reads all the same.

    It has a traceback and all they say: strangers could fill the log, and a token would be in it.
    """
    unreadable = record.exc_info and isinstance(record.exc_info[1], UnicodeDecodeError)
    return not (unreadable and record.name.startswith("grpc."))


def configure(service: str, level: str) -> None:
    """Sends all logging of the process to stderr as JSON lines.

    Args:
        service: Name of the service: "gateway".
        level: Least severity sent: "debug", "info", "warning" or "error".
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(service))
    handler.addFilter(_not_a_strangers)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
