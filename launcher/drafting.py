"""Whether a deployment drafts, for those that show or measure what drafts are worth."""

from __future__ import annotations

import time

from paceline import Client

from common.drafters import misfit
from common.errors import StartupError, Unavailable
from launcher.cluster import Cluster
from launcher.service import describe

JOIN_S = 30.0
"""Time a drafter gets to be found by the gateway."""

TICK_S = 0.2


def await_draft(cluster: Cluster, client: Client) -> None:
    """Wait until a deployment drafts.

    Args:
        cluster: The deployment, serving.
        client: Of its gateway.

    Raises:
        StartupError: It does not; says why.
        Unavailable: A worker does not answer.
    """
    check_drafter(cluster)
    addresses = {service.name: service.address for service in cluster.services}
    if "drafter" not in addresses:
        raise StartupError("there is no drafter")
    try:
        target, drafter = (describe(addresses[name]) for name in ("verifier", "drafter"))
    except Unavailable:
        check_drafter(cluster)  # meanwhile it may have ended
        raise
    if why := misfit(target, drafter):
        raise StartupError(f"the drafter does not fit: {why}")
    deadline_s = time.monotonic() + JOIN_S
    while "draft" not in client.models()[0].methods:
        check_drafter(cluster)
        if time.monotonic() > deadline_s:
            raise StartupError(f"the gateway did not find the drafter within {JOIN_S:.0f} s")
        time.sleep(TICK_S)


def check_drafter(cluster: Cluster) -> None:
    """Refuse what was measured where a deployment lost its drafter.

    Raises:
        StartupError: It did.
    """
    if any(service.name == "drafter" and service.ended for service in cluster.services):
        raise StartupError("the drafter is gone")
