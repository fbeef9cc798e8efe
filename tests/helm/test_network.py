"""Who can reach whom: exactly the arrows of the architecture, and what Kubernetes itself needs."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.helm.chart import (
    EXAMPLES,
    Object,
    example,
    objects_of,
    of_kind,
    one,
    overlay,
    pod_of,
    render,
    selects,
)
from tests.helm.variants import VARIANTS

CLIENT = "a client"
PORTS = {"gateway": 7070, "verifier": 7071, "drafter": 7072, "store": 6379}
LANES = 7073
ARROWS = {
    (CLIENT, "gateway"),
    ("gateway", "verifier"),
    ("gateway", "drafter"),  # its load; drafts never pass a gateway
    ("verifier", "drafter"),
    ("gateway", "store"),
    ("verifier", "store"),
}
STORE_ELSEWHERE = [
    ({"url": "rediss://store"}, 6379),
    ({"url": "rediss://10.0.0.5/0"}, 6379),
    ({"url": "rediss://store:6380/1"}, 6380),
    ({"url": "rediss://user@[fd00::5]:6381"}, 6381),
    ({"existingSecret": "store"}, 6379),
    ({"existingSecret": "store", "url": "rediss://store:6380/1"}, 6379),
]


def tier_of(deployment: Object) -> str:
    return pod_of(deployment)["metadata"]["labels"]["app.kubernetes.io/component"]


def number(port: int | str, deployment: Object) -> int:
    if isinstance(port, int):
        return port
    named = {
        each["name"]: each["containerPort"]
        for container in pod_of(deployment)["spec"]["containers"]
        for each in container["ports"]
    }
    return named[port]


def policies_of(objects: list[Object], labels: dict[str, str]) -> list[Object]:
    return [
        item
        for item in of_kind(objects, "NetworkPolicy")
        if selects(item["spec"]["podSelector"]["matchLabels"], labels)
    ]


def peer_matches(peer: Object, labels: dict[str, str]) -> bool:
    """Of pods of the same namespace; a peer elsewhere or outside the cluster never matches."""
    if "namespaceSelector" in peer or "ipBlock" in peer:
        return False
    return selects(peer["podSelector"]["matchLabels"], labels)


def allows(rules: list[Object], key: str, labels: dict[str, str], port: int, to: Object) -> bool:
    return any(
        (key not in rule or any(peer_matches(peer, labels) for peer in rule[key]))
        and port in {number(each["port"], to) for each in rule["ports"]}
        for rule in rules
    )


def reaches(objects: list[Object], source: Object | None, target: Object, port: int) -> bool:
    """Whether packets pass, as NetworkPolicies are defined: egress there and ingress here."""
    here = pod_of(target)["metadata"]["labels"]
    there = pod_of(source)["metadata"]["labels"] if source else {"app": "client"}
    incoming = policies_of(objects, here)
    outgoing = policies_of(objects, there) if source else []
    enters = not incoming or any(
        allows(policy["spec"]["ingress"], "from", there, port, target) for policy in incoming
    )
    leaves = not outgoing or any(
        allows(policy["spec"]["egress"], "to", here, port, target) for policy in outgoing
    )
    return enters and leaves


def ports_outside(rules: list[Object]) -> set[int]:
    """The ports at which anything but pods of the same namespace is reached."""
    return {
        port["port"]
        for rule in rules
        if "to" not in rule or any(peer.keys() != {"podSelector"} for peer in rule["to"])
        for port in rule["ports"]
    }


@pytest.fixture(params=[*EXAMPLES, "store-elsewhere", "one-verifier"], scope="module")
def objects(request: pytest.FixtureRequest) -> list[Object]:
    if request.param in EXAMPLES:
        return example(request.param)
    return objects_of(render(VARIANTS[request.param]))


def test_exactly_the_arrows(objects) -> None:
    deployments = of_kind(objects, "Deployment")
    clients_limited = any(
        "from" in rule
        for policy in of_kind(objects, "NetworkPolicy")
        if policy["metadata"]["name"].endswith("-gateway")
        for rule in policy["spec"]["ingress"]
    )
    for target in deployments:
        tier = tier_of(target)
        for source in (None, *deployments):
            pair = (tier_of(source) if source else CLIENT, tier)
            wanted = pair in ARROWS and source is not target
            if tier == "gateway" and source is not None:
                continue  # a pod of ours is as good a client as any: what matters is egress
            if pair == (CLIENT, "gateway") and clients_limited:
                wanted = False  # this client is in no namespace that was named
            assert reaches(objects, source, target, PORTS[tier]) is wanted, pair


def test_lanes_are_for_verifiers(objects) -> None:
    """None at other tiers; and where there are to be none, nobody is told of one."""
    for target in of_kind(objects, "Deployment"):
        if tier_of(target) != "drafter":
            continue
        for source in (None, *of_kind(objects, "Deployment")):
            lets_in = source is not None and tier_of(source) == "verifier"
            assert reaches(objects, source, target, LANES) is lets_in
    assert str(LANES) not in str(objects_of(render({**VARIANTS["one-verifier"], "lanePort": None})))


def test_nobody_reaches_a_gateway_from_inside(objects) -> None:
    gateway = next(d for d in of_kind(objects, "Deployment") if tier_of(d) == "gateway")
    for source in of_kind(objects, "Deployment"):
        assert not reaches(objects, source, gateway, PORTS["gateway"])


def test_no_other_port_is_open(objects) -> None:
    for target in of_kind(objects, "Deployment"):
        for source in (None, *of_kind(objects, "Deployment")):
            for port in (7079, 22, 9464):
                assert not reaches(objects, source, target, port)


def test_everybody_finds_names_and_nobody_more_than_needed(objects) -> None:
    outside = {}
    for policy in of_kind(objects, "NetworkPolicy"):
        tier = policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        outside[tier] = ports_outside(policy["spec"]["egress"])
    text = str(objects)
    hub = {443} if "hf download" in text or "'download'" in text or "/hub" in text else set()
    api = {443, 6443} if "kubernetes:" in text else set()
    (gateway,) = pod_of(one(objects, "Deployment", "demo-paceline-gateway"))["spec"]["containers"]
    urls = [each for each in gateway["env"] if each["name"].endswith("STORE_URL")]
    store = {urlsplit(each.get("value", "")).port or 6379 for each in urls if "valkey" not in text}
    assert outside.pop("gateway") - hub == ({53} | api | store) - hub
    assert outside.pop("verifier") - hub == ({53} | store)
    if "drafter" in outside:
        assert outside.pop("drafter") - hub == {53}
    assert outside in ({}, {"store": set()})


@pytest.mark.parametrize(
    ("changes", "gateway", "verifier"),
    [
        ({}, set(), set()),
        *(({"store": store}, {port}, {port}) for store, port in STORE_ELSEWHERE),
        (
            {
                "store": {"existingSecret": "store"},
                "networkPolicy": {"store": {"ports": [6390]}},
            },
            {6390},
            {6390},
        ),
        ({"tracing": {"enabled": True}}, {4317}, {4317}),
        ({"tracing": {"enabled": True, "otlpEndpoint": "https://collector:443"}}, {443}, {443}),
        ({"gateway": {"config": {"auth": {"jwks": "https://issuer/keys"}}}}, {443}, set()),
        ({"gateway": {"config": {"auth": {"jwks": "https://issuer:8443/keys"}}}}, {8443}, set()),
        ({"gateway": {"config": {"auth": {"jwks": "/etc/jwks/keys.json"}}}}, set(), set()),
    ],
)
def test_what_settings_name_outside_is_reached_at_its_port(
    changes: dict[str, Any], gateway: set[int], verifier: set[int]
) -> None:
    given = overlay(overlay(VARIANTS["one-verifier"], {"discovery": "dns"}), changes)
    objects = objects_of(render(given))
    for tier, ports in (("gateway", gateway), ("verifier", verifier)):
        policy = one(objects, "NetworkPolicy", f"demo-paceline-{tier}")
        assert ports_outside(policy["spec"]["egress"]) == {53} | ports


@pytest.mark.parametrize("store", [store for store, _ in STORE_ELSEWHERE])
def test_a_store_elsewhere_takes_the_place_of_the_charts_own(store: dict[str, str]) -> None:
    objects = objects_of(render(overlay(VARIANTS["one-verifier"], {"store": store})))
    assert "valkey" not in str(objects)


def test_what_is_outside_is_reached_by_either_version_of_ip() -> None:
    changes = {
        "listen": "::",
        "tracing": {"enabled": True},
        "gateway": {"config": {"auth": {"jwks": "https://issuer/keys"}}},
        "verifier": {"pools": {"v": {"model": {"path": "", "hub": "org/model"}}}},
    }
    objects = objects_of(render(overlay(VARIANTS["store-elsewhere"], changes)))
    for policy in of_kind(objects, "NetworkPolicy"):
        for rule in policy["spec"]["egress"]:
            assert all("ipBlock" not in peer for peer in rule.get("to", ()))


def test_without_policies_there_are_none() -> None:
    objects = objects_of(render(VARIANTS["no-store-no-policies-six"]))
    assert not of_kind(objects, "NetworkPolicy")
