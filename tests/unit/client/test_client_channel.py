"""Where the client connects to, and how."""

from __future__ import annotations

from typing import Any

import paceline
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline._channel import channel_options, resolve_address


def test_the_address_is_the_argument_else_the_environments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PACELINE_ADDRESS", raising=False)
    assert paceline.AsyncClient().address == "localhost:7070"
    monkeypatch.setenv("PACELINE_ADDRESS", "there:1")
    assert paceline.AsyncClient().address == "there:1"
    assert paceline.AsyncClient("here:2").address == "here:2"


@pytest.mark.parametrize(
    ("address", "completed"),
    [
        ("localhost", "localhost:7070"),
        (" localhost\n", "localhost:7070"),
        ("10.0.0.1:1\r", "10.0.0.1:1"),
        ("gpu-1.example.com", "gpu-1.example.com:7070"),
        ("10.0.0.1", "10.0.0.1:7070"),
        ("[::1]", "[::1]:7070"),
        ("::1", "[::1]:7070"),
        ("fe80::1%eth0", "[fe80::1%eth0]:7070"),
    ],
)
def test_a_host_alone_means_the_default_port(
    address: str, completed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert paceline.AsyncClient(address).address == completed
    monkeypatch.setenv("PACELINE_ADDRESS", address)
    assert paceline.AsyncClient().address == completed


@pytest.mark.parametrize(
    "address",
    [
        "localhost:1",
        "[::1]:1",
        "unix:/tmp/gateway",
        "unix:gateway",
        "unix:///tmp/gateway",
        "unix-abstract:gateway",
        "dns:gateway",
        "dns:///gateway",
        "dns://8.8.8.8/gateway:1",
        "ipv4:10.0.0.1:1,10.0.0.2:1",
        "ipv6:[::1]:1",
        "xds:///gateway",
    ],
)
def test_every_other_target_is_left_as_it_is(address: str) -> None:
    assert resolve_address(address) == address


@given(st.from_regex(r"[a-z0-9][a-z0-9.-]{0,40}", fullmatch=True), st.integers(0, 65535))
def test_an_address_is_completed_once(host: str, port: int) -> None:
    assert resolve_address(host) == resolve_address(resolve_address(host)) == f"{host}:7070"
    assert resolve_address(f"{host}:{port}") == f"{host}:{port}"


@pytest.mark.parametrize("address", ["http://localhost:7070", "https://host", "", " "])
def test_a_web_address_is_refused(address: str) -> None:
    with pytest.raises(paceline.ArgumentError, match="address: must be host:port"):
        paceline.Client(address)


def test_an_address_is_text() -> None:
    wrong: Any = 7070
    with pytest.raises(TypeError, match="address must be str, got int"):
        paceline.Client(wrong)
    with pytest.raises(paceline.ArgumentError, match="address: is not valid Unicode at character"):
        paceline.Client("\udcff:1")


def test_keepalive_stays_within_what_the_gateway_allows() -> None:
    options = dict(channel_options("host:1"))
    assert int(options["grpc.keepalive_time_ms"]) == 30_000
    assert options["grpc.max_receive_message_length"] == 64 * 1024 * 1024


def test_who_hangs_is_noticed_in_mid_stream_as_soon_as_in_silence() -> None:
    options = dict(channel_options("host:1"))
    assert options["grpc.http2.ping_timeout_ms"] == options["grpc.keepalive_timeout_ms"] == 10_000


@pytest.mark.parametrize(
    ("address", "direct"),
    [
        ("localhost:1", True),
        ("127.0.0.1:1", True),
        ("127.9.9.9", True),
        ("[::1]:1", True),
        ("unix:/tmp/s", True),
        ("ipv4:127.0.0.1:1,127.0.0.2:1", True),
        ("ipv6:[::1]:1", True),
        ("gpu.example:1", False),
        ("localhost.example.com:1", False),
        ("127.0.0.1.example.com:1", False),
        ("ipv4:127.0.0.1:1,10.0.0.1:1", False),
        ("10.0.0.1:1", False),
    ],
)
def test_a_proxy_is_never_asked_for_this_machine(address: str, direct: bool) -> None:
    assert ("grpc.enable_http_proxy" in dict(channel_options(address))) is direct
