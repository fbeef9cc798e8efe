"""Whether a deployment drafts, and what keeps it from it, is found out before it is measured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from paceline import Client

from bench.ports import free_ports
from common.errors import StartupError, Unavailable
from launcher import drafting, service
from launcher.cluster import Cluster
from launcher.drafting import await_draft, check_drafter


def deployment() -> Cluster:
    services = [
        SimpleNamespace(name=name, address=name, ended=False) for name in ("verifier", "drafter")
    ]
    return cast(Cluster, SimpleNamespace(services=services))


def offering(*answers: tuple[str, ...]) -> Client:
    """A gateway's client, which is told these methods, the last of them again and again."""
    waiting = list(answers)

    def models() -> list[SimpleNamespace]:
        return [SimpleNamespace(methods=waiting.pop(0) if len(waiting) > 1 else waiting[0])]

    return cast(Client, SimpleNamespace(models=models))


@pytest.fixture(autouse=True)
def tokenizers(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Fingerprints by worker; and nobody waits long."""
    found = {"verifier": "a", "drafter": "a"}

    def describe(address: str) -> SimpleNamespace:
        return SimpleNamespace(tokenizer_fingerprint=found[address], vocab_size=9)

    monkeypatch.setattr(drafting, "describe", describe)
    monkeypatch.setattr(drafting, "TICK_S", 0.001)
    monkeypatch.setattr(drafting, "JOIN_S", 0.02)
    return found


def test_it_may_take_a_while() -> None:
    await_draft(deployment(), offering(("plain",), ("plain",), ("plain", "draft")))


def test_a_drafter_that_is_not_found_is_said() -> None:
    with pytest.raises(StartupError, match="did not find the drafter"):
        await_draft(deployment(), offering(("plain",)))


def test_nobody_waits_for_one_that_does_not_fit(tokenizers: dict[str, str]) -> None:
    tokenizers["drafter"] = "b"
    with pytest.raises(StartupError, match=r"does not fit: its tokenizer \(b\) differs"):
        await_draft(deployment(), offering(("plain", "draft")))


def test_a_drafter_that_ended_is_gone() -> None:
    cluster = deployment()
    check_drafter(cluster)
    verifier, drafter = cluster.services
    verifier.ended = True  # type: ignore[misc]
    check_drafter(cluster)
    drafter.ended = True  # type: ignore[misc]
    with pytest.raises(StartupError, match="the drafter is gone"):
        check_drafter(cluster)
    with pytest.raises(StartupError, match="the drafter is gone"):
        await_draft(cluster, offering(("plain",)))


def test_where_there_is_none_nobody_waits() -> None:
    cluster = deployment()
    del cluster.services[1]
    with pytest.raises(StartupError, match="there is no drafter"):
        await_draft(cluster, offering(("plain",)))


@pytest.mark.parametrize("ends", [True, False])
def test_a_worker_that_does_not_answer_may_have_ended(
    ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = deployment()

    def describe(address: str) -> None:
        cluster.services[1].ended = ends  # type: ignore[misc]
        raise Unavailable("no answer")

    monkeypatch.setattr(drafting, "describe", describe)
    with pytest.raises(StartupError if ends else Unavailable, match="gone" if ends else "answer"):
        await_draft(cluster, offering(("plain",)))


def test_nobody_answers_where_nobody_listens() -> None:
    (port,) = free_ports(1)
    with pytest.raises(Unavailable, match=f"no answer from 127.0.0.1:{port}"):
        service.describe(f"127.0.0.1:{port}")
