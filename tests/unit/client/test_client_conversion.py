"""gRPC's errors become ours, each with a message that helps."""

from __future__ import annotations

import grpc
import pytest
from paceline import errors
from paceline._conversion import CLASS_OF_CODE, converted, from_status

ADDRESS = "host:1"
CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


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
        (
            grpc.StatusCode.UNAVAILABLE,
            "errors resolving host:1: [field:hostname lookup error:address lookup failed for "
            "host:1: Domain name not found]",
            "no Paceline gateway answers at host:1 (Domain name not found); start one with "
            "`paceline up`, or give another address (PACELINE_ADDRESS)",
        ),
        (
            grpc.StatusCode.UNAVAILABLE,
            "errors resolving [::1]:x: [field:hostname lookup error:Failed to parse port in name: "
            "[::1]:x]",
            "no Paceline gateway answers at host:1 (Failed to parse port in name: [::1]:x); start "
            "one with `paceline up`, or give another address (PACELINE_ADDRESS)",
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


@pytest.mark.parametrize(
    ("address", "environment", "variable"),
    [
        ("host:1", {"http_proxy": "http://p:1"}, "http_proxy"),
        ("host:1", {"http_proxy": "http://p:1", "https_proxy": "http://q:1"}, "https_proxy"),
        ("host:1", {"https_proxy": "http://p:1", "grpc_proxy": "http://q:1"}, "grpc_proxy"),
        ("host:1", {"http_proxy": "http://p:1", "no_proxy": "other, x"}, "http_proxy"),
        ("10.1.2.3:1", {"http_proxy": "http://p:1", "no_proxy": "10.2.0.0/16"}, "http_proxy"),
        (
            "host:1",
            {"http_proxy": "http://p:1", "no_proxy": "host", "no_grpc_proxy": ""},
            "http_proxy",
        ),
        ("localhost:1", {"http_proxy": "http://p:1"}, None),
        ("unix:/tmp/gateway", {"http_proxy": "http://p:1"}, None),
        ("host:1", {"http_proxy": "http://p:1", "https_proxy": ""}, None),
        ("host:1", {"https_proxy": "socks5://p:1"}, None),
        ("a.Example.com:1", {"http_proxy": "http://p:1", "no_proxy": "x, .example.com"}, None),
        ("dns:///a.b:1", {"http_proxy": "http://p:1", "no_proxy": "a.b"}, None),
        ("10.1.2.3:1", {"http_proxy": "http://p:1", "no_proxy": "10.1.0.0/16"}, None),
        ("[fe80::1]:1", {"http_proxy": "http://p:1", "no_proxy": "fe80::/10"}, None),
        ("host:1", {"https_proxy": "https://p:1"}, None),
        ("a.example.com:1", {"http_proxy": "http://p:1", "no_proxy": ".EXAMPLE.com"}, None),
        ("10.1.2.3:1", {"http_proxy": "http://p:1", "no_proxy": "10.1.9.9/16"}, None),
        ("dns:10.1.2.3:1", {"http_proxy": "http://p:1", "no_proxy": "10.1.0.0/16"}, None),
        ("ipv4:10.1.2.3:1", {"http_proxy": "http://p:1", "no_proxy": "10.1.0.0/16"}, None),
        ("ipv6:[fe80::1]:1", {"http_proxy": "http://p:1", "no_proxy": "fe80::/10"}, None),
    ],
)
def test_a_proxy_on_the_way_may_be_at_fault(
    monkeypatch: pytest.MonkeyPatch,
    address: str,
    environment: dict[str, str],
    variable: str | None,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    details = "failed to connect to all addresses; last error: UNKNOWN: Connection refused"
    told = str(from_status(grpc.StatusCode.UNAVAILABLE, details, address))
    fault = f"; or the proxy that {variable} names is at fault"
    assert told.endswith(fault if variable else "(PACELINE_ADDRESS)")


@pytest.mark.parametrize(
    ("last_error", "reason"),
    [
        (
            "UNKNOWN: ipv4:127.0.0.1:1: Tls handshake failed (TSI_PROTOCOL_FAILURE): "
            "SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:"
            "CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate: OK",
            "CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate",
        ),
        (
            "UNKNOWN: ipv4:127.0.0.1:1: Tls handshake failed (TSI_PROTOCOL_FAILURE): "
            "SSL_ERROR_SSL: error:100000f7:SSL routines:OPENSSL_internal:WRONG_VERSION_NUMBER: "
            "Invalid certificate verification context: OK",
            "WRONG_VERSION_NUMBER: Invalid certificate verification context",
        ),
        (
            "UNKNOWN: ipv4:127.0.0.1:1: Custom verification check failed with error: "
            "UNAUTHENTICATED: Hostname Verification Check failed.",
            "Hostname Verification Check failed.",
        ),
        (
            "UNKNOWN: ipv4:127.0.0.1:1: Failed to create security handshaker.",
            "Failed to create security handshaker.",
        ),
    ],
)
def test_tls_that_fails_is_not_told_as_no_gateway(last_error: str, reason: str) -> None:
    details = f"failed to connect to all addresses; last error: {last_error}"
    assert str(from_status(grpc.StatusCode.UNAVAILABLE, details, ADDRESS)) == (
        "something listens at host:1, but its certificates or TLS settings and this client's do "
        f"not seem to agree ({reason}); see PACELINE_CA, PACELINE_CERT and PACELINE_KEY"
    )


@pytest.mark.parametrize(
    "reason",
    [
        "Socket closed",
        "recvmsg:Connection reset by peer (104)",
        "Handshake read failed (recvmsg:Connection reset by peer (104))",
    ],
)
def test_who_closes_connections_may_not_be_up_or_miss_tls(reason: str) -> None:
    details = (
        f"failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:1: {reason}"
    )
    assert str(from_status(grpc.StatusCode.UNAVAILABLE, details, ADDRESS)) == (
        f"something listens at host:1, but closes connections ({reason}): it is not up yet, or it "
        "expects TLS or another certificate; see PACELINE_CA, PACELINE_CERT and PACELINE_KEY"
    )


@pytest.mark.parametrize(
    "details",
    [
        "Received RST_STREAM with error code 2",
        "Stream removed (RST_STREAM (Received RST_STREAM with error code 2))",
    ],
)
def test_a_stream_that_was_reset_was_lost(details: str) -> None:
    error = from_status(grpc.StatusCode.INTERNAL, details, ADDRESS)
    assert type(error) is errors.UnavailableError
    assert str(error) == f"the connection to host:1 was lost ({details})"


@pytest.mark.parametrize(
    "details",
    [
        "Stream removed",
        "Stream removed (Data frame with END_STREAM flag received)",
        "Received http2 header with status: 404",
    ],
)
def test_an_answer_without_a_status_is_no_gateways(details: str) -> None:
    assert str(from_status(grpc.StatusCode.UNKNOWN, details, ADDRESS)) == (
        f"host:1 answered as no gateway does ({details}); is it one?"
    )


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_proxy_may_have_no_gateway_for_now(status: int) -> None:
    details = f"Received http2 header with status: {status}"
    error = from_status(grpc.StatusCode.UNAVAILABLE, details, ADDRESS)
    assert str(error) == f"a proxy at host:1 has no gateway for it now ({details})"


@pytest.mark.parametrize(
    ("side", "whose"),
    [("CLIENT: Sent", " (for most gateways far fewer)"), ("SERVER: Received", "")],
)
def test_a_request_too_large_is_to_be_mended_not_sent_again(side: str, whose: str) -> None:
    details = f"{side} message larger than max (100000036 vs. 67108864)"
    error = from_status(grpc.StatusCode.RESOURCE_EXHAUSTED, details, ADDRESS)
    assert type(error) is errors.InvalidArgumentError
    assert str(error) == (
        f"the request is too large: it must have at most 67108864 bytes{whose}, got 100000036"
    )


def test_an_error_without_a_code_is_unknown() -> None:
    with pytest.raises(errors.UnknownError, match="strange") as caught, converted(ADDRESS):
        raise grpc.RpcError("strange")
    assert isinstance(caught.value.__cause__, grpc.RpcError)


def test_other_exceptions_pass() -> None:
    with pytest.raises(KeyError), converted(ADDRESS):
        raise KeyError
