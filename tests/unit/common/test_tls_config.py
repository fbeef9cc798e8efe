"""Who may listen where without certificates."""

import pytest

from common.errors import ConfigError
from common.tls_config import TlsConfig, check_exposure, check_store, loopback
from common.worker_config import WorkerConfig


@pytest.mark.parametrize(
    ("host", "inside"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_only_loopback_is_this_machine(host: str, inside: bool) -> None:
    assert loopback(host) is inside


def test_beyond_this_machine_something_has_to_be_said() -> None:
    for said in ({"protected": True, "insecure": False}, {"protected": False, "insecure": True}):
        check_exposure("0.0.0.0", remedy="tls", **said)
    check_exposure("127.0.0.1", remedy="tls", protected=False, insecure=False)
    with pytest.raises(ConfigError, match=r"host: 0\.0\.0\.0 .* set tls, or say --insecure"):
        check_exposure("0.0.0.0", remedy="tls", protected=False, insecure=False)


def test_a_worker_listens_beyond_this_machine_only_with_certificates(tmp_path) -> None:
    fields = {"model": "m", "port": 0, "grace_s": 0, "host": "0.0.0.0"}
    with pytest.raises(ConfigError, match=r"tls\.cert, tls\.key and tls\.ca"):
        WorkerConfig(**fields)
    with pytest.raises(ConfigError, match="--insecure"):
        WorkerConfig(**fields, tls=TlsConfig(cert=tmp_path, key=tmp_path))
    WorkerConfig(**fields, tls=TlsConfig(cert=tmp_path, key=tmp_path, ca=tmp_path))
    WorkerConfig(**fields, insecure=True)


@pytest.mark.parametrize(
    "url",
    [
        None,
        "redis://localhost:6379/0",
        "redis://:secret@127.0.0.1:6379/0",
        "redis://[::1]:6379",
        "redis:///0",
        "rediss://store.example:6379/0",
        "unix:///run/store.sock",
    ],
)
def test_a_store_here_or_over_tls_needs_no_word(url: str | None) -> None:
    check_store(url, insecure=False)


@pytest.mark.parametrize("host", ["store", "10.0.0.5", "[2001:db8::1]", "localhost.example"])
def test_a_store_elsewhere_in_plaintext_does(host: str) -> None:
    url = f"redis://:secret@{host}:6379/0"
    with pytest.raises(
        ConfigError, match=r"store_url: .* rediss://, .* --store-insecure"
    ) as refused:
        check_store(url, insecure=False)
    assert "secret" not in str(refused.value)
    check_store(url, insecure=True)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "secret",
        "http://:secret@store:6379",
        "redis://[store:6379",
        "redis://:secret℀@store:6379",
        "redis://:secret#more@store:6379/0",
        "rediss://:secret/more@store:6379/0",
        "rediss://:1#secret@store:6379/0",
        "rediss://:1/secret@store:6379/0",
        "rediss://:1?secret@store:6379/0",
        "redis://:secret?more@store:6379/0",
        "unix://:secret#more@/run/store.sock",
    ],
)
def test_an_address_that_is_none_is_refused_by_its_field(url: str) -> None:
    with pytest.raises(ConfigError, match=r"store_url: .* escape") as refused:
        check_store(url, insecure=False)
    assert "secret" not in str(refused.value)


def test_certificate_and_key_go_together(tmp_path) -> None:
    with pytest.raises(ConfigError, match="cert and key"):
        TlsConfig(cert=tmp_path)
    assert not TlsConfig(ca=tmp_path).serves
    assert TlsConfig(cert=tmp_path, key=tmp_path).serves
    assert not TlsConfig(cert=tmp_path, key=tmp_path).mutual
    assert TlsConfig(cert=tmp_path, key=tmp_path, ca=tmp_path).mutual
