"""gRPC's errors become ours, each with a message that helps."""

from __future__ import annotations

import grpc
import pytest
from paceline import errors
from paceline._conversion import CLASS_OF_CODE, converted, from_status

ADDRESS = "host:1"
CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]


def test_every_code_has_exactly_one_class() -> None:
    assert set(CLASS_OF_CODE) == set(CODES)
    assert len(errors.RpcError.__subclasses__()) == len(CODES)


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_a_code_becomes_its_class_with_the_servers_words(code: grpc.StatusCode) -> None:
    error = from_status(code, "what happened", ADDRESS)
    assert type(error).code is code
    assert str(error) == "what happened"


@pytest.mark.parametrize(
    ("code", "details", "expected"),
    [
        (
            grpc.StatusCode.UNAVAILABLE,
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Failed to "
            "connect to remote host: connect: Connection refused (111)",
            "no Paceline gateway answers at host:1 (Connection refused (111)); start one with "
            "`paceline up`, or give another address (PACELINE_ADDRESS)",
        ),
        (
            grpc.StatusCode.UNAVAILABLE,
            "DNS resolution failed for host:1: C-ares status is not ARES_SUCCESS: Domain name not "
            "found",
            "no Paceline gateway answers at host:1 (Domain name not found); start one with "
            "`paceline up`, or give another address (PACELINE_ADDRESS)",
        ),
        (grpc.StatusCode.UNAVAILABLE, "no verifier is up", "no verifier is up"),
        (
            grpc.StatusCode.UNIMPLEMENTED,
            "Method not found!",
            "the server at host:1 does not know this call; is it a Paceline gateway?",
        ),
        (
            grpc.StatusCode.DEADLINE_EXCEEDED,
            "Stream removed (Deadline Exceeded)",
            "no complete answer from host:1 in time; raise the timeout to wait longer",
        ),
        (grpc.StatusCode.INTERNAL, "", "INTERNAL"),
    ],
)
def test_messages_say_what_to_do(code: grpc.StatusCode, details: str, expected: str) -> None:
    assert str(from_status(code, details, ADDRESS)) == expected


def test_an_error_without_a_code_is_unknown() -> None:
    with pytest.raises(errors.UnknownError, match="strange") as caught, converted(ADDRESS):
        raise grpc.RpcError("strange")
    assert isinstance(caught.value.__cause__, grpc.RpcError)


def test_other_exceptions_pass() -> None:
    with pytest.raises(KeyError), converted(ADDRESS):
        raise KeyError
