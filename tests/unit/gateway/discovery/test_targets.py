"""How workers are named in a configuration."""

import pytest

from common.errors import ConfigError
from gateway.discovery.target import DnsTarget, KubernetesTarget, StaticTarget, parse_targets


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("10.0.0.1:7071", StaticTarget(address="10.0.0.1:7071")),
        ("[::1]:7071", StaticTarget(address="[::1]:7071")),
        ("dns:7071", StaticTarget(address="dns:7071")),
        ("dns:workers.ns.svc:7071", DnsTarget(host="workers.ns.svc", port=7071)),
        (
            "kubernetes:verifier:grpc",
            KubernetesTarget(namespace=None, service="verifier", port="grpc"),
        ),
        (
            "kubernetes:ns/verifier:7071",
            KubernetesTarget(namespace="ns", service="verifier", port="7071"),
        ),
    ],
)
def test_three_forms(text, target) -> None:
    assert parse_targets("verifiers", [text]) == (target,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nowhere", "verifiers: must be host:port, got 'nowhere'; dns:host:port and kubernetes:"),
        (":7071", "verifiers: must be host:port"),
        ("host:grpc", "verifiers: must be host:port"),
        ("host:99999", r"verifiers: a port must be in \[1, 65535\], got 'host:99999'"),
        ("host:0", "verifiers: a port must be in"),
        ("http://host:1", "the host is a name, an IPv4 address or an IPv6 address in brackets"),
        ("::1:7071", "an IPv6 address in brackets, got '::1:7071'; dns:host:port and kubernetes:"),
        ("[::1:7071", "an IPv6 address in brackets"),
        ("dns:http://host:1", "verifiers: must be dns:host:port, got 'dns:http://host:1'"),
        ("dns:host:65536", "verifiers: a port must be in"),
        ("kubernetes:verifier:99999", "verifiers: a port must be in"),
        ("dns:host:grpc", "verifiers: must be dns:host:port, got 'dns:host:grpc'"),
        ("dns::7071", "verifiers: must be dns:host:port"),
        ("kubernetes:ns/:grpc", r"must be kubernetes:\[namespace/\]service:port, got"),
        ("kubernetes:/verifier:grpc", "must be kubernetes:"),
        ("kubernetes:a/b/c:grpc", "must be kubernetes:"),
        ("kubernetes:verifier:", "must be kubernetes:"),
    ],
)
def test_what_is_none_of_them(text, message) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_targets("verifiers", ["h:1", text])
