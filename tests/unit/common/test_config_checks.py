"""Checks that configurations share."""

import pytest

from common.config_checks import check_ports
from common.errors import ConfigError


def test_every_port_is_one_of_its_own() -> None:
    check_ports(port=7071, health_port=None, metrics_port=None)
    check_ports(port=0, health_port=0, metrics_port=0)
    with pytest.raises(ConfigError, match="health_port: 7071 is another port of the service"):
        check_ports(port=7071, health_port=7071, metrics_port=None)
    with pytest.raises(ConfigError, match="metrics_port: 7079 is another port of the service"):
        check_ports(port=7071, health_port=7079, metrics_port=7079)
    with pytest.raises(ConfigError, match=r"metrics_port: must be in \[0, 65535\], got 65536"):
        check_ports(port=7071, metrics_port=65536)
