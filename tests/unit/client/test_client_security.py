"""Tokens and certificates of a client: where they come from, where they may go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import paceline
import pytest
from paceline._security import Security

ALL = ("PACELINE_TOKEN", "PACELINE_CA", "PACELINE_CERT", "PACELINE_KEY", "PACELINE_INSECURE")


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ALL:
        monkeypatch.delenv(name, raising=False)


def security(address: str = "localhost:1", **options: Any) -> Security:
    return Security(address, **{"token": None, "tls": None, "insecure": False, **options})


def test_a_token_goes_with_each_call() -> None:
    assert security().metadata() == ()
    assert security(token="t").metadata() == (("authorization", "Bearer t"),)
    tokens = iter("ab")
    fresh = security(token=lambda: next(tokens))
    assert [fresh.metadata()[0][1] for _ in range(2)] == ["Bearer a", "Bearer b"]


@pytest.mark.parametrize("address", ["gateway:7070", "10.0.0.1:1", "dns:///gateway:1"])
def test_no_token_in_plaintext_to_another_machine(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(paceline.ArgumentError, match=r"token: would go to .* in plaintext"):
        paceline.Client(address, token="t")
    monkeypatch.setenv("PACELINE_TOKEN", "t")
    with pytest.raises(paceline.ArgumentError, match="PACELINE_CA"):
        paceline.AsyncClient(address)
    security(address, insecure=True)
    monkeypatch.setenv("PACELINE_INSECURE", "1")
    security(address)


def test_no_token_is_no_secret() -> None:
    security("gateway:7070")


def test_the_environment_names_certificates(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert security().credentials is None
    monkeypatch.setenv("PACELINE_CA", "system")
    assert security("gateway:1", token="t").credentials is not None
    monkeypatch.setenv("PACELINE_CA", str(tmp_path / "nowhere"))
    with pytest.raises(paceline.ArgumentError, match=r"tls\.ca: cannot be read"):
        paceline.Client()


def test_what_is_given_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_TOKEN", "theirs")
    assert security(token="mine").metadata()[0][1] == "Bearer mine"
    named = security(tls=paceline.Tls(server_name="gateway"))
    assert named.options == [("grpc.ssl_target_name_override", "gateway")]


def test_wrong_types_and_halves() -> None:
    with pytest.raises(TypeError, match="token must be str"):
        security(token=7)
    with pytest.raises(TypeError, match=r"tls must be paceline\.Tls"):
        security(tls=True)
    with pytest.raises(paceline.ArgumentError, match="cert and key"):
        paceline.Tls(cert="c").credentials()


def test_a_client_does_not_show_its_token() -> None:
    with paceline.Client("localhost:1", token="secret") as client:
        assert "secret" not in repr(client)
        assert "secret" not in str(vars(client))
