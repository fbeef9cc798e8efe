"""Log lines are JSON, one a line, with what the caller added."""

import json
import logging

import pytest
from grpc._cython.cygrpc import ExecuteBatchError
from opentelemetry.util.re import parse_env_headers

from common.logs import JsonFormatter, configure
from common.telemetry.span import SpanIds, entered


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


def test_an_extra_takes_no_name_that_is_taken() -> None:
    record = logging.makeLogRecord({"msg": "listing again", "service": "default/verifier"})
    line = json.loads(JsonFormatter("gateway").format(record))
    assert (line["service"], line["service_"]) == ("gateway", "default/verifier")


def test_what_json_has_no_number_for_is_a_word() -> None:
    record = logging.makeLogRecord({"msg": "draining", "grace_s": float("inf"), "left": 0.5})
    text = JsonFormatter("gateway").format(record)
    line = json.loads(text, parse_constant=pytest.fail)
    assert (line["grace_s"], line["left"]) == ("inf", 0.5)


def test_values_inside_others_are_made_plain_too() -> None:
    record = logging.makeLogRecord(
        {"msg": "measured", "a": {"b": float("nan"), (1, 2): [0.5, (float("-inf"),)]}}
    )
    line = json.loads(JsonFormatter("gateway").format(record), parse_constant=pytest.fail)
    assert line["a"] == {"b": "nan", "(1, 2)": [0.5, ["-inf"]]}


def test_a_traceback_stays_on_the_line() -> None:
    try:
        raise KeyError("x")
    except KeyError as error:
        record = logging.makeLogRecord({"exc_info": (KeyError, error, error.__traceback__)})
    text = JsonFormatter("gateway").format(record)
    assert "\n" not in text
    assert "KeyError" in json.loads(text)["exception"]


def test_a_line_within_a_span_names_it() -> None:
    record = logging.makeLogRecord({"msg": "placed"})
    formatter = JsonFormatter("gateway")
    with entered(SpanIds(trace_id="0a" * 16, span_id="b7" * 8, sampled=False)):
        line = json.loads(formatter.format(record))
    assert (line["trace_id"], line["span_id"]) == ("0a" * 16, "b7" * 8)
    assert "trace_id" not in json.loads(formatter.format(record))


def _configured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has logs go to standard error, as a gateway's, for the rest of a test."""
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root, "level", logging.root.level)
    configure("gateway", "info")


def test_what_strangers_could_fill_the_log_with_stays_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _configured(monkeypatch)
    strangers = UnicodeDecodeError("utf-8", b"Bearer \xff", 7, 8, ""), ExecuteBatchError("gone")
    for error in (*strangers, KeyError("x")):
        for name in ("grpc._cython.cygrpc", "gateway.service"):
            told = f"{name}: {type(error).__name__}"
            logging.getLogger(name).error(told, exc_info=error)
    events = [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]
    assert events == [
        "gateway.service: UnicodeDecodeError",
        "gateway.service: ExecuteBatchError",
        "grpc._cython.cygrpc: KeyError",
        "gateway.service: KeyError",
    ]


def test_headers_that_opentelemetry_cannot_read_are_not_quoted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _configured(monkeypatch)
    for liberal in (False, True):
        assert parse_env_headers("authorization: Bearer s3cret", liberal=liberal) == {}
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert "Header format invalid!" in json.loads(line)["event"]
        assert "s3cret" not in line
