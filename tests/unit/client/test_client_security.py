"""Tokens and certificates of a client: where they come from, where they may go."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import paceline
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st
from paceline._security import Security

from tests.certificates import Authority

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


@given(
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1),
    st.text(" \t\r\n", max_size=3),
)
def test_white_space_around_a_token_is_left_out(token: str, space: str) -> None:
    expected = (("authorization", f"Bearer {token}"),)
    padded = f"{space}{token}{space}"
    assert security(token=padded).metadata() == expected
    assert security(token=lambda: padded).metadata() == expected


@given(st.characters(exclude_categories=["Cs"]).filter(lambda c: not " " <= c <= "~"))
def test_a_token_that_cannot_be_sent_is_refused_but_not_shown(character: str) -> None:
    token = f"secret{character}secret"
    problem = "must be printable ASCII on one line, and is not at character 6"
    with pytest.raises(paceline.ArgumentError) as given_one:
        security(token=token)
    assert str(given_one.value) == f"token: {problem}"
    fresh = security(token=lambda: token)
    with pytest.raises(paceline.ArgumentError) as returned:
        fresh.metadata()
    assert str(returned.value) == f"token(): {problem}"


def test_a_token_is_refused_by_the_name_of_where_it_came_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PACELINE_TOKEN", " mine\n")
    assert security().metadata() == (("authorization", "Bearer mine"),)
    monkeypatch.setenv("PACELINE_TOKEN", "two\nlines")
    with pytest.raises(paceline.ArgumentError, match=r"^PACELINE_TOKEN: must be printable ASCII"):
        paceline.Client("localhost:1")
    assert security(token="").metadata() == ()
    wrong: Any = lambda: b"bytes"  # noqa: E731
    with pytest.raises(TypeError, match=r"token\(\) must be str, got bytes"):
        security(token=wrong).metadata()


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
    for said in ("1", "TRUE", "yes", "On"):
        monkeypatch.setenv("PACELINE_INSECURE", said)
        security(address)
    for said in ("", "0", "False", "no", "OFF"):
        monkeypatch.setenv("PACELINE_INSECURE", said)
        with pytest.raises(paceline.ArgumentError, match="in plaintext"):
            security(address)


def test_whether_plaintext_will_do_is_said_in_known_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_INSECURE", "maybe")
    with pytest.raises(paceline.ArgumentError) as caught:
        paceline.Client("localhost:1")
    assert str(caught.value) == (
        "PACELINE_INSECURE: must be one of 1, true, yes, on, or one of 0, false, no, off, "
        "got 'maybe'"
    )


def test_no_token_is_no_secret() -> None:
    security("gateway:7070")


def test_the_environment_names_certificates(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert security().credentials is None
    monkeypatch.setenv("PACELINE_CA", "system")
    assert security("gateway:1", token="t").credentials is not None
    monkeypatch.setenv("PACELINE_CA", str(tmp_path / "nowhere"))
    for client in (paceline.Client, paceline.AsyncClient):
        with pytest.raises(paceline.ArgumentError, match=r"tls\.ca: cannot be read"):
            client()


@pytest.mark.parametrize("name", ["PACELINE_CERT", "PACELINE_KEY"])
def test_a_certificate_of_its_own_needs_authorities(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "own.pem")
    with pytest.raises(paceline.ArgumentError, match=f"{name}: needs PACELINE_CA"):
        security()


def test_files_are_read_when_a_client_is_made(tmp_path: Path) -> None:
    """Not once more for the channel that it takes after Ctrl-C."""
    Authority("gateway").issue(tmp_path)
    ca = tmp_path / "ca.pem"
    with paceline.Client("localhost:1", tls=paceline.Tls(ca=ca)) as client:
        ca.unlink()
        client._new_line()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "no certificate",
        "-----BEGIN CERTIFICATE-----\ncut off",
        "-----BEGIN PRIVATE KEY-----",
        "-----BEGIN X509 CRL-----\nbm9uZQ==\n-----END X509 CRL-----\n",
    ],
)
def test_a_file_without_a_certificate_is_named(
    content: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Authority("gateway").issue(tmp_path)
    broken = tmp_path / "broken.pem"
    broken.write_text(content)
    needs = "must hold a PEM certificate .* but .*broken.pem holds none"
    monkeypatch.setenv("PACELINE_CA", str(broken))
    with pytest.raises(paceline.ArgumentError, match=rf"^tls\.ca: {needs}"):
        paceline.Client("gateway:1")
    halves = paceline.Tls(ca=tmp_path / "ca.pem", cert=broken, key=tmp_path / "key.pem")
    with pytest.raises(paceline.ArgumentError, match=rf"^tls\.cert: {needs}"):
        halves.credentials()


def test_a_key_that_is_not_the_certificates_is_named(tmp_path: Path) -> None:
    authority = Authority("gateway")
    own, other = authority.issue(tmp_path / "own"), authority.issue(tmp_path / "other")
    assert own.key is not None
    assert other.key is not None
    locked, broken = tmp_path / "locked.pem", tmp_path / "broken.pem"
    key = serialization.load_pem_private_key(own.key.read_bytes(), None)
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    broken.write_text("-----BEGIN PRIVATE KEY-----\ncut off")
    assert paceline.Tls(ca=own.ca, cert=own.cert, key=own.key).credentials() is not None
    for wrong in (other.key, locked, broken, own.cert):
        with pytest.raises(paceline.ArgumentError) as caught:
            paceline.Client("gateway:1", tls=paceline.Tls(ca=own.ca, cert=own.cert, key=wrong))
        assert str(caught.value) == (
            f"tls.key: must hold the private key of {own.cert} as PEM without a password, but "
            f"{wrong} does not"
        )


def test_a_key_may_be_as_weak_as_gateways_take_it(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 1024)
    files = Authority("gateway").issue(tmp_path, key=key)
    assert paceline.Tls(ca=files.ca, cert=files.cert, key=files.key).credentials() is not None


def piped(content: bytes, stack: ExitStack) -> str:
    """Returns what a shell's `<(command)` is: its content is for the first who reads."""
    reader, writer = os.pipe()
    stack.callback(os.close, reader)
    with os.fdopen(writer, "wb") as pipe:
        pipe.write(content)
    return f"/dev/fd/{reader}"


def test_what_is_no_file_is_read_once(tmp_path: Path) -> None:
    files = Authority("gateway").issue(tmp_path)
    with ExitStack() as stack:
        given = {
            name: piped(getattr(files, name).read_bytes(), stack) for name in ("ca", "cert", "key")
        }
        assert paceline.Tls(**given).credentials() is not None
        broken = paceline.Tls(ca=piped(b"no certificate", stack))
        with pytest.raises(paceline.ArgumentError, match=r"^tls\.ca: must hold a PEM certificate"):
            broken.credentials()


@pytest.mark.parametrize(
    "more",
    [
        "",
        "-----BEGIN CERTIFICATE-----\nbm9uZQ==\n-----END CERTIFICATE-----\n",
        "-----BEGIN X509 CRL-----\nbm9uZQ==\n-----END X509 CRL-----\n",
    ],
)
def test_a_file_may_hold_more_than_its_certificates(more: str, tmp_path: Path) -> None:
    Authority("gateway").issue(tmp_path)
    ca = tmp_path / "ca.pem"
    ca.write_text(f"# Größe\n{ca.read_text()}{ca.read_text()}{more}")
    assert paceline.Tls(ca=ca).credentials() is not None


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
