"""Addresses of both families."""

import pytest

from common.rpc.address import host_port


@pytest.mark.parametrize(
    ("host", "written"),
    [("10.0.0.1", "10.0.0.1:7"), ("h", "h:7"), ("::1", "[::1]:7"), ("[::1]", "[::1]:7")],
)
def test_an_ipv6_host_is_in_brackets(host: str, written: str) -> None:
    assert host_port(host, 7) == written
