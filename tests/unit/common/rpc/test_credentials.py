"""Certificates from files: what is in force, and when something new is."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import StartupError
from common.rpc.credentials import CertificateFiles
from common.tls_config import TlsConfig
from tests.certificates import Authority


@pytest.fixture
def config(tmp_path: Path) -> TlsConfig:
    return Authority("tests").issue(tmp_path / "certificates")


def test_new_files_are_taken_over_once(config: TlsConfig) -> None:
    files = CertificateFiles(config)
    assert not files.renewed()
    assert config.key is not None
    Authority("others").issue(config.key.parent)
    assert files.renewed()
    assert not files.renewed()


def test_the_same_content_written_again_is_nothing_new(config: TlsConfig) -> None:
    assert config.ca is not None
    files = CertificateFiles(config)
    again = config.ca.with_suffix(".again")
    again.write_bytes(config.ca.read_bytes())
    again.replace(config.ca)
    assert not files.renewed()


@pytest.mark.parametrize("there", [True, False])
def test_what_cannot_be_read_is_read_later(
    config: TlsConfig, there: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The old ones stay in force, and the change is not forgotten meanwhile; it is told once."""
    files = CertificateFiles(config)
    assert config.key is not None
    key = config.key.read_bytes()
    config.key.unlink()
    if there:
        config.key.mkdir()
    for _ in range(3):
        assert not files.renewed()
    files.channel()
    assert caplog.messages == ["certificates cannot be used"]
    if there:
        config.key.rmdir()
    config.key.write_bytes(key + b"\n")
    assert files.renewed()


def test_a_key_that_is_not_the_certificates(config: TlsConfig, tmp_path: Path) -> None:
    """An error at the start; in a rotation the old ones stay in force until both are new."""
    files, others = CertificateFiles(config), Authority("others").issue(tmp_path / "others")
    assert config.cert is not None
    assert config.key is not None
    assert others.cert is not None
    assert others.key is not None
    with pytest.raises(StartupError, match=r"tls: .* cannot be used together: .*MISMATCH"):
        CertificateFiles(replace(config, key=others.key))
    others.cert.replace(config.cert)
    assert not files.renewed()
    others.key.replace(config.key)
    assert files.renewed()


@pytest.mark.parametrize("serves", [True, False])
@pytest.mark.parametrize("part", ["none", "garbage", "half", "one and a half"])
def test_authorities_that_cannot_be_used(config: TlsConfig, serves: bool, part: str) -> None:
    """An error at the start; in a rotation the old ones stay in force until the file is whole."""
    assert config.ca is not None
    whole = config.ca.read_bytes()
    half = whole[: len(whole) // 2]
    config = config if serves else TlsConfig(ca=config.ca)
    files = CertificateFiles(config)
    broken = {"none": b"", "garbage": b"garbage", "half": half, "one and a half": whole + half}
    config.ca.write_bytes(broken[part])
    os.utime(config.ca, ns=(1, 1))
    assert not files.renewed()
    with pytest.raises(StartupError, match=r"tls: .*ca\.pem cannot be used: "):
        CertificateFiles(config)
    config.ca.write_bytes(whole + whole)
    os.utime(config.ca, ns=(2, 2))
    assert files.renewed()


def test_files_that_are_not_there_at_the_start_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"tls: .*ca\.pem: No such file"):
        CertificateFiles(TlsConfig(ca=tmp_path / "ca.pem"))
