"""The token file: who a token is, what is refused, and what happens when the file changes."""

import os
import threading
from pathlib import Path

import pytest

from common.errors import ConfigError, Unauthenticated
from gateway.auth import token_file
from gateway.auth.__main__ import main
from gateway.auth.authenticator import Authenticator
from gateway.auth.caller import ANYONE, Limits
from gateway.auth.config import AuthConfig
from gateway.auth.token_file import TokenFile, token_hash

FILE = f"""
tenants:
  acme:
    models: [a, b]
    max_concurrent: 2
    tokens_per_s: 50
    tokens:
      - sha256: {token_hash("acme-token")}
      - sha256: {token_hash("narrow")}
        models: [b, c]
      - sha256: {token_hash("old")}
        expires: 2020-01-01
      - sha256: {token_hash("new")}
        expires: 2999-01-01T00:00:00Z
  other:
    tokens:
      - sha256: {token_hash("other-token")}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "tokens.yaml").write_text(FILE)
    return tmp_path / "tokens.yaml"


def rewrite(path: Path, text: str) -> None:
    path.write_text(text)
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000))


def test_a_token_is_its_tenants_with_no_more_models_than_that() -> None:
    assert Limits(tokens_per_s=50).burst == 500
    assert Limits(tokens_per_s=50, burst_tokens=7).burst == 7


def test_a_new_token_fits_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    token, line = (part.split()[1] for part in capsys.readouterr().out.splitlines())
    assert line == token_hash(token)
    assert len(token) > 40


def test_help_makes_no_token(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "example:\n  $ python -m gateway.auth\n" in text
    assert "auth.tokens" in text
    settings = ["models", "max_concurrent", "tokens_per_s", "burst_tokens", "operator", "expires"]
    assert all(f"{setting}: " in text for setting in settings)


@pytest.mark.parametrize("argv", [[], ["--help"]])
def test_what_nobody_reads_to_its_end_is_no_traceback(
    argv: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as out:
        monkeypatch.setattr("sys.stdout", out)
        with pytest.raises(SystemExit) as ended:
            raise SystemExit(main(argv))
    assert ended.value.code == 1


@pytest.mark.parametrize("argument", ["acme", "--tenant=acme"])
def test_what_it_does_not_know_makes_no_token(
    argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([argument])
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert f"unrecognized arguments: {argument}" in told.err


def test_who_is_who(path: Path) -> None:
    tokens = TokenFile(path)
    acme = tokens.caller("acme-token")
    assert acme is not None
    assert (acme.tenant, acme.models) == ("acme", {"a", "b"})
    assert acme.limits == Limits(max_concurrent=2, tokens_per_s=50)
    narrow, other = tokens.caller("narrow"), tokens.caller("other-token")
    assert narrow is not None
    assert (narrow.tenant, narrow.models) == ("acme", {"b"})
    assert other is not None
    assert (other.tenant, other.models, other.limits) == ("other", None, Limits())
    assert tokens.caller("new") is not None
    for wrong in ("old", "", "acme", token_hash("acme-token")):
        assert tokens.caller(wrong) is None


def test_a_changed_file_counts_and_a_bad_one_does_not(path: Path) -> None:
    tokens = TokenFile(path)
    rewrite(path, FILE.replace(token_hash("acme-token"), token_hash("rotated")))
    tokens.renew()
    assert tokens.caller("acme-token") is None
    assert tokens.caller("rotated") is not None
    rewrite(path, "tenants: [")
    tokens.renew()
    assert tokens.caller("rotated") is not None
    path.unlink()
    tokens.renew()
    assert tokens.caller("rotated") is not None


def test_a_file_that_cannot_be_read_for_a_moment_is_read_later(path: Path) -> None:
    tokens = TokenFile(path)
    path.unlink()
    path.mkdir()
    tokens.renew()
    path.rmdir()
    rewrite(path, FILE.replace(token_hash("acme-token"), token_hash("rotated")))
    tokens.renew()
    assert tokens.caller("rotated") is not None


async def test_callers_see_a_change_and_no_file_is_touched_on_the_loop(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_file, "_MOST_AGE_S", 0.0)
    authenticator = Authenticator(AuthConfig(tokens=path))
    threads = set()
    renew = token_file._read

    def watched(file: Path) -> bytes:
        threads.add(threading.current_thread())
        return renew(file)

    monkeypatch.setattr(token_file, "_read", watched)
    rewrite(path, FILE.replace(token_hash("acme-token"), token_hash("rotated")))
    metadata = [("authorization", "Bearer rotated")]
    assert (await authenticator.identify(metadata)).tenant == "acme"
    assert len(threads) == 1
    assert threading.current_thread() not in threads


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tenants: [", "cannot be read"),
        ("tenants: " + "[" * 1000, "cannot be read"),
        (b"tenants: \xff", "cannot be read"),
        ("tenants: {a: {max_concurrent: 1}, a: {max_concurrent: 9}}", "a is given twice"),
        ("tenants: {a: {tokens: [{expires: 2027-02-30}]}}", "cannot be read: day "),
        ("- a", "the file: must hold tenants"),
        ("tenants:", "tenants: must hold a mapping"),
        ("tenants: [a]", "tenants: must hold a mapping"),
        ("tenants: {a: {tokens: 5}}", r"tenants.a.tokens: must be a list"),
        ("tenant: {}", "knows tenants, not tenant"),
        ("tenants: {a: {tokens: [{sha256: abc}]}}", r"tenants.a.tokens\[0\].sha256: must be 64"),
        ("tenants: {a: {model: [x]}}", "not model"),
        ("tenants: {a: {models: x}}", "tenants.a.models: must be a list"),
        ("tenants: {a: {tokens_per_s: 0}}", "tenants.a.tokens_per_s: must be above 0"),
        ("tenants: {a: {max_concurrent: many}}", "max_concurrent: must be above 0"),
        (
            "tenants: {a: {tokens: [{sha256: " + "a" * 64 + ", expires: soon}]}}",
            "expires: must be a date",
        ),
        ("tenants: {a: {tokens: [" + ("{sha256: " + "a" * 64 + "}, ") * 2 + "]}}", "twice"),
    ],
)
def test_what_is_no_token_file(tmp_path: Path, text: str | bytes, problem: str) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=problem):
        TokenFile(file)


def test_no_file_at_all(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"auth.tokens: .*No such file"):
        TokenFile(tmp_path / "none")


@pytest.mark.parametrize(
    "header",
    [(), ("Bearer wrong",), ("Basic acme-token",), ("acme-token",), ("Bearer",), ("Bearer old",)],
)
async def test_every_refusal_reads_the_same(path: Path, header: tuple[str, ...]) -> None:
    authenticator = Authenticator(AuthConfig(tokens=path))
    with pytest.raises(Unauthenticated, match=r"^a valid bearer token is needed$"):
        await authenticator.identify([("authorization", value) for value in header])


async def test_a_bearer_is_known_and_nobody_is_asked_where_nothing_is_set(path: Path) -> None:
    authenticator = Authenticator(AuthConfig(tokens=path))
    caller = await authenticator.identify([("x", "y"), ("authorization", "bearer acme-token")])
    assert caller.tenant == "acme"
    assert await Authenticator(AuthConfig()).identify([]) == ANYONE


def test_operators_are_named(path: Path) -> None:
    path.write_text(
        f"""
tenants:
  staff:
    operator: true
    tokens:
      - sha256: {token_hash("operator")}
      - sha256: {token_hash("intern")}
        operator: false
  acme:
    tokens: [{{sha256: {token_hash("customer")}}}]
"""
    )
    tokens = TokenFile(path)
    said = {name: tokens.caller(name) for name in ("operator", "intern", "customer")}
    assert {name for name, caller in said.items() if caller and caller.operator} == {"operator"}
    path.write_text("tenants: {staff: {operator: 1}}")
    with pytest.raises(
        ConfigError, match=r"tenants\.staff\.operator: must be true or false, got 1"
    ):
        TokenFile(path)
