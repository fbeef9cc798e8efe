"""Where the client connects to, and how."""

from __future__ import annotations

from typing import Any

import paceline
import pytest
from paceline._channel import channel_options


def test_the_address_is_the_argument_else_the_environments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PACELINE_ADDRESS", raising=False)
    assert paceline.AsyncClient().address == "localhost:7070"
    monkeypatch.setenv("PACELINE_ADDRESS", "there:1")
    assert paceline.AsyncClient().address == "there:1"
    assert paceline.AsyncClient("here:2").address == "here:2"


@pytest.mark.parametrize("address", ["http://localhost:7070", "https://host", ""])
def test_a_web_address_is_refused(address: str) -> None:
    with pytest.raises(paceline.ArgumentError, match="address: must be host:port"):
        paceline.Client(address)


def test_an_address_is_a_string() -> None:
    wrong: Any = 7070
    with pytest.raises(TypeError, match="address must be str, got int"):
        paceline.Client(wrong)


def test_keepalive_stays_within_what_the_gateway_allows() -> None:
    options = dict(channel_options("host:1"))
    assert int(options["grpc.keepalive_time_ms"]) == 30_000
    assert options["grpc.max_receive_message_length"] == 64 * 1024 * 1024


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
