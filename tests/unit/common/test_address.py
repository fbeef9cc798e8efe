"""Addresses of both families: any address of IPv4 is any of both, where that is so."""

from __future__ import annotations

import socket

import pytest

from common.address import any_address, check_port, host_port
from tests.ipv6 import needs_ipv6


@needs_ipv6
@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no socket for both here")
@pytest.mark.parametrize("only_ipv6", [0, 1])
def test_who_does_not_ask_for_both_gets_what_sockets_are_made_as(
    only_ipv6: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: True)  # it asks the same of sockets
    monkeypatch.setattr(socket.socket, "getsockopt", lambda *_: only_ipv6)
    assert any_address("0.0.0.0") == "::"
    assert any_address("0.0.0.0", asks=False) == ("0.0.0.0" if only_ipv6 else "::")


@pytest.mark.parametrize("asks", [True, False])
def test_without_a_socket_for_both_ipv4_stays_ipv4(
    asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    assert any_address("0.0.0.0", asks=asks) == "0.0.0.0"


@pytest.mark.parametrize("host", ["127.0.0.1", "::", "::1", "gateway"])
def test_any_other_host_is_itself(host: str) -> None:
    assert any_address(host) == host


@pytest.mark.parametrize(
    ("host", "written"),
    [("10.0.0.1", "10.0.0.1:7"), ("h", "h:7"), ("::1", "[::1]:7"), ("[::1]", "[::1]:7")],
)
def test_an_ipv6_host_is_in_brackets(host: str, written: str) -> None:
    assert host_port(host, 7) == written


@needs_ipv6
def test_sockets_take_it_without() -> None:
    assert any_address("[::1]") == "::1"
    check_port("[::1]", 0)
