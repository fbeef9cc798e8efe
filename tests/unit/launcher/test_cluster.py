from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
import redis
from grpc_health.v1 import health, health_pb2_grpc

from common import config
from common.errors import StartupError, Unavailable
from drafter.config import DrafterConfig
from gateway.config import GatewayConfig
from launcher import commandline
from launcher.cluster import Cluster, reachable
from launcher.models import Models
from launcher.service import Service, State, is_serving
from tests.ipv6 import needs_ipv6
from verifier.config import VerifierConfig

FAKE = Path(__file__).with_name("fake_service.py")
Eventually = Callable[[Callable[[], object]], bool]


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replaces the services by fakes; they write down when they start and stop."""

    def fake(module: str, flags: dict[str, str]) -> list[str]:
        parts = [part for key, value in flags.items() for part in (f"--{key}", value)]
        return [sys.executable, str(FAKE), module, *parts]

    monkeypatch.setattr(commandline, "service_command", fake)
    monkeypatch.setenv("FAKE_NOTES", str(tmp_path / "notes"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path / "notes"


def by_name(cluster: Cluster) -> dict[str, Service]:
    return {service.name: service for service in cluster.services}


def pids(services: Sequence[Service]) -> list[int]:
    return [service.process.pid for service in services if service.process]


def test_services_here_are_not_asked_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        proxy = f"http://127.0.0.1:{unused.getsockname()[1]}"
    monkeypatch.setenv("grpc_proxy", proxy)
    for name in ("no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            assert is_serving(f"127.0.0.1:{port}")
        finally:
            server.stop(0).wait()


def test_services_start_and_stop_in_order(
    notes: Path, tmp_path: Path, gone: Callable[[int], bool]
) -> None:
    with Cluster(models=Models(target=tmp_path, draft=tmp_path)) as cluster:
        assert is_serving(cluster.address)
        assert [s.state for s in cluster.services] == [State.SERVING] * 4
        assert len(list(tmp_path.glob("paceline-*"))) == 1
        with redis.Redis.from_url(by_name(cluster)["store"].address) as store:
            assert store.ping()
        cluster.check()
        started = pids(cluster.services)
    assert len(started) == 4
    assert all(gone(pid) for pid in started)
    assert list(tmp_path.glob("paceline-*")) == []
    events = notes.read_text().splitlines()
    assert sorted(events[:2]) == ["start drafter", "start verifier"]
    assert events[2:] == ["start gateway", "stop gateway", "stop verifier", "stop drafter"]


def test_others_reach_the_drafter_by_another_way(
    notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, str]] = []
    fake = commandline.service_command

    def command(module: str, flags: dict[str, str]) -> list[str]:
        told.append(flags)
        return fake(module, flags)

    monkeypatch.setattr(commandline, "service_command", command)
    models = Models(target=tmp_path, draft=tmp_path)
    drafters: list[str] = []

    def detour(address: str) -> str:
        drafters.append(address)
        return "127.0.0.1:1"

    with Cluster(models=models, with_store=False, drafter_link=detour) as cluster:
        assert drafters == [by_name(cluster)["drafter"].address]
    assert told[-1]["drafters"] == "127.0.0.1:1"


def test_services_find_what_is_added_to_their_environment(notes: Path, tmp_path: Path) -> None:
    cluster = Cluster(models=Models(target=tmp_path), environment={"FAKE_BROKEN": "verifier"})
    with pytest.raises(StartupError, match=r"^verifier: no such weights$"), cluster:
        pass


def test_services_serve_metrics_one_port_after_the_other() -> None:
    assert commandline.metrics_environment(None) == {}
    ports = commandline.metrics_environment(9464)
    for cls, name, port in (
        (GatewayConfig, "gateway", 9464),
        (VerifierConfig, "verifier", 9465),
        (DrafterConfig, "drafter", 9466),
    ):
        flags = ["--verifiers", "127.0.0.1:1"] if name == "gateway" else ["--model", "m"]
        settings = config.load(cls, flags, prog=name, description="", environ=ports)
        assert settings.metrics_port == port


@pytest.mark.parametrize("service", ["gateway", "verifier", "drafter"])
def test_ports_that_are_taken_are_found_before_anything_starts(
    service: str, notes: Path, tmp_path: Path
) -> None:
    """By others, or by the gateway itself."""
    at = commandline.MEASURED.index(service)
    models = Models(target=tmp_path, draft=tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        first = port - at
        others = r"port \d+ on 127.0.0.1 is already in use; .* another with --metrics-port"
        with pytest.raises(StartupError, match=others), Cluster(models=models, metrics_port=first):
            pass
    own = rf"port {port} is the {service}'s for metrics: .* --metrics-port, which takes 3 ports"
    with (
        pytest.raises(StartupError, match=own),
        Cluster(models=models, port=port, metrics_port=first),
    ):
        pass
    assert not notes.exists() or not notes.read_text()


@needs_ipv6
def test_a_gateways_metrics_are_where_it_listens(notes: Path, tmp_path: Path) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        cluster = Cluster(models=Models(target=tmp_path), host="::1", metrics_port=port)
        with pytest.raises(StartupError, match=f"port {port} on ::1 .*--metrics-port"), cluster:
            pass


@pytest.mark.parametrize(
    ("host", "reached"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("::", "::1"),
        ("::1", "::1"),
        ("10.0.0.1", "10.0.0.1"),
        ("localhost", "localhost"),
    ],
)
def test_where_a_gateway_is_reached(host: str, reached: str) -> None:
    assert reachable(host) == reached


@needs_ipv6
@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_a_gateway_on_ipv6_is_found(host: str, notes: Path, tmp_path: Path) -> None:
    with Cluster(models=Models(target=tmp_path), host=host, with_store=False) as cluster:
        assert cluster.address.startswith("[::1]:")
        assert is_serving(cluster.address)


def test_store_and_drafter_can_be_left_out(notes: Path, tmp_path: Path) -> None:
    with Cluster(models=Models(target=tmp_path), with_store=False) as cluster:
        assert list(by_name(cluster)) == ["verifier", "gateway"]
        assert is_serving(cluster.address)


@pytest.mark.parametrize("broken", ["drafter", "verifier", "gateway"])
def test_one_that_cannot_start_stops_the_others(
    notes: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gone: Callable[[int], bool],
    broken: str,
) -> None:
    monkeypatch.setenv("FAKE_BROKEN", broken)
    cluster = Cluster(models=Models(target=tmp_path, draft=tmp_path))
    with pytest.raises(StartupError, match=f"^{broken}: no such weights$"), cluster:
        pass
    assert all(gone(pid) for pid in pids(cluster.services))
    assert by_name(cluster)[broken].state is State.FAILED
    assert by_name(cluster)["store"].state is State.STOPPED
    assert list(tmp_path.glob("paceline-*")) == []


def test_a_port_in_use_is_said_before_anything_starts(notes: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cluster = Cluster(models=Models(target=tmp_path, draft=tmp_path), port=port)
        with pytest.raises(StartupError, match=f"port {port} on 127.0.0.1 .*--port"), cluster:
            pass
    assert not notes.exists()


def test_services_that_would_speak_tls_are_not_waited_for(
    notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_GATEWAY_TLS__CA", "")  # none
    monkeypatch.setenv("PACELINE_GATEWAY_TLS__CERT", "cert.pem")
    cluster = Cluster(models=Models(target=tmp_path))
    with pytest.raises(StartupError, match=r"^PACELINE_GATEWAY_TLS__CERT is set"), cluster:
        pass
    assert not notes.exists()


def test_a_lost_drafter_is_shown_and_tolerated(
    notes: Path, tmp_path: Path, eventually: Eventually
) -> None:
    seen: list[dict[str, State]] = []

    def watch(services: Sequence[Service]) -> None:
        seen.append({service.name: service.state for service in services})

    with Cluster(models=Models(target=tmp_path, draft=tmp_path), watch=watch) as cluster:
        drafter = by_name(cluster)["drafter"]
        assert drafter.process
        os.kill(drafter.process.pid, signal.SIGKILL)
        assert eventually(lambda: drafter.ended)
        cluster.check()
        cluster.check()
        assert drafter.state is State.LOST
        assert seen[-1]["drafter"] is State.LOST
        assert is_serving(cluster.address)


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (signal.SIGKILL, r"verifier died \(killed by SIGKILL\)"),
        (signal.SIGTERM, r"verifier has ended as it was told to: it was drained, or stopped$"),
    ],
)
def test_a_lost_verifier_is_an_error(
    sent: signal.Signals, told: str, notes: Path, tmp_path: Path, eventually: Eventually
) -> None:
    with Cluster(models=Models(target=tmp_path)) as cluster:
        verifier = by_name(cluster)["verifier"]
        assert verifier.process
        os.kill(verifier.process.pid, sent)
        assert eventually(lambda: verifier.ended)
        with pytest.raises(Unavailable, match=told):
            cluster.check()
