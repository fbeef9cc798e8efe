"""What a drafter can be told at its start."""

from __future__ import annotations

import pytest

from common.errors import ConfigError
from drafter.config import DrafterConfig


@pytest.mark.parametrize("port", [7072, 7079, 9464])
def test_lanes_have_a_port_of_their_own(port: int) -> None:
    """Else it would show only once the model is loaded."""
    ports = {"port": 7072, "health_port": 7079, "metrics_port": 9464}
    with pytest.raises(ConfigError, match=f"lane_port: {port} is another port of the service"):
        DrafterConfig(model="m", lane_port=port, **ports)
    for free in (None, 0, 7073):
        assert DrafterConfig(model="m", lane_port=free, **ports).lane_port == free
    with pytest.raises(ConfigError, match="lane_port: must be in"):
        DrafterConfig(model="m", lane_port=65536)
