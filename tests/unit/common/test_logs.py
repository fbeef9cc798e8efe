"""Log lines are JSON, one a line, with what the caller added."""

import json
import logging

from common.logs import JsonFormatter


def test_a_line_has_the_event_and_its_extras() -> None:
    record = logging.makeLogRecord(
        {"msg": "verifier %s", "args": ("lost",), "levelname": "WARNING"}
    )
    record.address = "h:1"
    line = json.loads(JsonFormatter("gateway").format(record))
    assert line.pop("ts").endswith("+00:00")
    assert line == {
        "level": "warning",
        "service": "gateway",
        "event": "verifier lost",
        "address": "h:1",
    }


def test_a_traceback_stays_on_the_line() -> None:
    try:
        raise KeyError("x")
    except KeyError as error:
        record = logging.makeLogRecord({"exc_info": (KeyError, error, error.__traceback__)})
    text = JsonFormatter("gateway").format(record)
    assert "\n" not in text
    assert "KeyError" in json.loads(text)["exception"]
