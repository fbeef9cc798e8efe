"""Signing keys: fetched again as they age, once for all callers, and not believed for ever."""

from __future__ import annotations

import asyncio
import io
import ssl
import threading
from http.client import BadStatusLine, IncompleteRead
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError
from common.tls_config import TlsConfig
from gateway.auth.key_set import KeySet
from tests.certificates import Authority
from tests.waiting import until

REFRESH_S, STALE_S = 300.0, 3600.0


class Issuer:
    """An address with keys, that can be away, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys = "a"
        self.fetches = 0
        self.away = False
        self.now = 1000.0
        self.waits: threading.Event | None = None
        monkeypatch.setattr(KeySet, "_read", lambda _: self._read())
        self.set = KeySet(
            "https://issuer/keys",
            lambda text: {name: name for name in text.decode()},
            refresh_s=REFRESH_S,
            stale_s=STALE_S,
            clock=lambda: self.now,
        )

    def _read(self) -> bytes:
        self.fetches += 1
        if self.waits is not None:
            assert self.waits.wait(30)
        if self.away:
            raise ConfigError("away")
        return self.keys.encode()

    async def knows(self, name: str, after_s: float = 0.0) -> bool:
        self.now += after_s
        return await self.set.key(name) == name


@pytest.fixture
def issuer(monkeypatch: pytest.MonkeyPatch) -> Issuer:
    return Issuer(monkeypatch)


async def test_a_revoked_key_is_gone_once_the_keys_are_old(issuer: Issuer) -> None:
    assert await issuer.knows("a")
    issuer.keys = "b"
    assert await issuer.knows("a", REFRESH_S - 1)
    assert issuer.fetches == 1
    assert not await issuer.knows("a", 1)
    assert issuer.fetches == 2


async def test_a_new_key_is_found_and_an_unknown_one_does_not_hammer(issuer: Issuer) -> None:
    assert await issuer.knows("a")
    issuer.keys = "ab"
    assert not await issuer.knows("b", 9)
    assert await issuer.knows("b", 1)
    for _ in range(20):
        assert not await issuer.knows("unknown", 0.1)
    assert issuer.fetches == 2


async def test_stale_keys_count_for_a_time_while_the_issuer_is_away(
    issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    assert await issuer.knows("a")
    issuer.away = True
    assert await issuer.knows("a", STALE_S - 1)
    for _ in range(5):
        await issuer.knows("a")
    assert issuer.fetches == 2, "once a while, though it failed"
    assert not await issuer.knows("a", 1)
    assert "keys not fetched" in caplog.messages
    issuer.away = False
    assert await issuer.knows("a", 10)


async def test_after_a_failure_it_is_tried_again_soon(issuer: Issuer) -> None:
    assert await issuer.knows("a")
    issuer.away = True
    assert await issuer.knows("a", REFRESH_S)
    issuer.away, issuer.keys = False, "b"
    assert not await issuer.knows("a", 10)


async def test_callers_share_one_fetch_and_one_that_leaves_does_not_end_it(issuer: Issuer) -> None:
    issuer.waits = threading.Event()
    callers = [asyncio.create_task(issuer.set.key("a")) for _ in range(20)]
    await until(lambda: issuer.fetches == 1)
    callers[0].cancel()
    issuer.waits.set()
    found = await asyncio.gather(*callers, return_exceptions=True)
    assert found[1:] == ["a"] * 19
    assert issuer.fetches == 1


async def test_a_slow_issuer_holds_up_nobody_whose_key_is_known(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gateway.auth import key_set

    monkeypatch.setattr(key_set, "_PATIENCE_S", 0.0)
    assert await issuer.knows("a")
    issuer.waits = threading.Event()
    assert await issuer.knows("a", REFRESH_S)
    await until(lambda: issuer.fetches == 2)
    issuer.keys = "b"
    issuer.waits.set()
    await until(lambda: issuer.set._refresh._task is None)
    assert not await issuer.knows("a")


async def test_where_no_key_is_trusted_any_more_callers_wait_for_the_issuer(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gateway.auth import key_set

    monkeypatch.setattr(key_set, "_PATIENCE_S", 0.0)
    assert await issuer.knows("a")
    issuer.waits = threading.Event()
    caller = asyncio.create_task(issuer.knows("a", STALE_S))
    await until(lambda: issuer.fetches == 2)
    issuer.waits.set()
    assert await caller


@pytest.mark.parametrize("error", [ConnectionResetError(), BadStatusLine("x"), IncompleteRead(b"")])
async def test_whatever_goes_wrong_in_a_fetch_it_is_tried_again_soon(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Opener:
        asked, now = 0, 1000.0

        def open(self, *_: Any, **__: Any) -> io.BytesIO:
            self.asked += 1
            if self.asked > 1:
                raise error
            return io.BytesIO(b"a")

    opener = Opener()
    monkeypatch.setattr("urllib.request.build_opener", lambda *_: opener)
    keys = KeySet(
        "https://issuer/keys",
        lambda text: {text.decode(): "key"},
        refresh_s=REFRESH_S,
        stale_s=STALE_S,
        clock=lambda: opener.now,
    )
    assert await keys.key("a") == "key"
    for after_s in (REFRESH_S, 10):
        opener.now += after_s
        assert await keys.key("a") == "key"
    assert opener.asked == 3


def test_a_file_is_read_at_the_start(tmp_path: Any) -> None:
    def refuse(text: bytes) -> Any:
        raise ConfigError(f"no key set: {text!r}")

    (tmp_path / "keys").write_text("x")
    with pytest.raises(ConfigError, match="no key set"):
        KeySet(str(tmp_path / "keys"), refuse, refresh_s=1, stale_s=1)


class Site:
    """An address of https or http that sends on to another one, or answers."""

    def __init__(self, tls: TlsConfig | None, onward: str | None = None) -> None:
        self.asked = asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                self.send_response(200 if onward is None else 302)
                self.send_header("Location", onward or "")
                self.end_headers()
                self.wfile.write(b"a")

            def log_message(self, *_: Any) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            assert tls.cert is not None
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.cert, tls.key)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if tls is None else "https"
        self.address = f"{scheme}://localhost:{self._server.server_port}/keys"

    def __enter__(self) -> Site:
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


async def test_redirects_are_followed_as_long_as_they_stay_within_https(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tls = Authority("issuer").issue(tmp_path / "tls")
    monkeypatch.setenv("SSL_CERT_FILE", str(tls.ca))

    async def found(source: str) -> str | None:
        keys = KeySet(source, lambda text: {"a": text.decode()}, refresh_s=1, stale_s=60)
        return await keys.key("a")

    with (
        Site(tls) as last,
        Site(tls, last.address) as straight,
        Site(None, last.address) as open_to_all,
        Site(tls, open_to_all.address) as astray,
    ):
        assert await found(straight.address) == "a"
        assert await found(astray.address) is None
        assert [len(site.asked) for site in (astray, open_to_all, last)] == [1, 0, 1]
    assert "keys not fetched" in caplog.messages
