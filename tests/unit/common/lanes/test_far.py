"""Lanes between machines: for whom they are, and for whom not."""

from __future__ import annotations

import asyncio
import errno
import select
import socket
import time
from contextlib import closing, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from common.errors import StartupError
from common.lanes import far
from common.lanes.far import FarOffer, LanePort, connect, reach
from common.tls_config import TlsConfig
from tests.certificates import Authority
from tests.ipv6 import needs_ipv6
from tests.unit.common.lanes.end import End
from tests.waiting import until

HOST = "127.0.0.1"
ADDRESS = f"{HOST}:7072"  # of the stream; who answers there does not matter
PLAIN = TlsConfig()
SECRET = bytes(far._SECRET_BYTES).hex()  # nobody's
OURS, THEIRS = Authority("ours"), Authority("theirs")
REFUSED = r"CERTIFICATE|UNKNOWN_CA|hung up on|reset|EOF|Broken pipe|somebody else"
"""What who is hung up on hears, within TLS or before it: that hangs on how far it had come."""


async def take_up(offer: FarOffer, tls: TlsConfig = PLAIN, address: str = ADDRESS) -> socket.socket:
    """As a verifier does."""
    return await reach(offer.metadata[1], address, tls)


async def talk(caller: socket.socket, server: socket.socket) -> None:
    """Has both ends say much at once, and checks that it comes."""
    one, other = End(caller, far=True), End(server, far=True)
    messages = [bytes([number]) * (number * 40_000) for number in range(20)]
    for message in messages:
        one.lane.send(message)
        other.lane.send(message)
    async with asyncio.timeout(20):
        while one.came != messages or other.came != messages:
            one.take()
            other.take()
            await asyncio.sleep(0)
    assert not one.lane.shares_processors
    one.lane.close()
    await asyncio.to_thread(select.select, [other.lane], [], [], 10)
    with pytest.raises(EOFError, match="it hung up"):
        other.take()
    other.lane.close()


@pytest.mark.parametrize("secure", [False, True], ids=["plaintext", "tls"])
async def test_both_ends_are_heard(secure: bool, tmp_path: Path) -> None:
    mine = OURS.issue(tmp_path / "mine") if secure else PLAIN
    theirs = OURS.issue(tmp_path / "theirs") if secure else PLAIN
    async with LanePort(HOST, 0, mine) as port:
        for _ in range(2):  # one after the other
            with closing(port.offer()) as offer:
                caller = await take_up(offer, theirs)
                server = await offer.accept()
            await talk(caller, server)


async def test_a_name_may_stand_for_all(tmp_path: Path) -> None:
    """As where workers are called by addresses that no certificate names."""
    tls = OURS.issue(tmp_path)
    named = TlsConfig(cert=tls.cert, key=tls.key, ca=tls.ca, server_name="worker")
    other = TlsConfig(cert=tls.cert, key=tls.key, ca=tls.ca, server_name="elsewhere")
    async with LanePort(HOST, 0, tls) as port:
        with closing(port.offer()) as offer:
            with pytest.raises(OSError, match="elsewhere"):
                await take_up(offer, other)
            caller = await take_up(offer, named)
            caller.close()
            (await offer.accept()).close()


async def test_strangers_are_hung_up_on(tmp_path: Path) -> None:
    ours, theirs = OURS.issue(tmp_path / "ours"), THEIRS.issue(tmp_path / "theirs")
    fooled = THEIRS.issue(tmp_path / "fooled", ca=OURS)  # knows us, and we do not know it
    nobody = TlsConfig(ca=ours.ca)
    async with LanePort(HOST, 0, ours) as port:
        with closing(port.offer()) as offer:
            for stranger in (theirs, fooled, nobody, PLAIN):
                with pytest.raises(OSError, match=REFUSED):
                    await take_up(offer, stranger)
            (await take_up(offer, ours)).close()
            (await offer.accept()).close()


async def test_a_secret_is_good_for_one_connection_of_one_stream() -> None:
    async with LanePort(HOST, 0, PLAIN) as port:
        with closing(port.offer()) as offer, closing(port.offer()) as other:
            wrong = f"{port.number} {SECRET}"
            with pytest.raises(OSError, match="hung up on"):
                await reach(wrong, ADDRESS, PLAIN)
            with closing(await take_up(offer)):
                with pytest.raises(OSError, match="hung up on"):
                    await take_up(offer)
                (await offer.accept()).close()
            other.close()
            with pytest.raises(OSError, match="hung up on"):
                await take_up(other)


@needs_ipv6
@pytest.mark.parametrize("host", ["::1", "[::1]"])
async def test_a_host_of_ipv6_may_be_in_brackets(host: str) -> None:
    async with LanePort(host, 0, PLAIN) as port:
        with closing(port.offer()) as offer:
            (await take_up(offer, address="[::1]:7072")).close()


async def test_who_says_nothing_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(far, "_GREETING_S", 1.0)
    monkeypatch.setattr(far, "_WELCOME_S", 30.0)
    async with LanePort(HOST, 0, PLAIN) as port:
        silent = [socket.create_connection((HOST, port.number)) for _ in range(2 * far._GREETERS)]
        for number, each in enumerate(silent):
            each.send(bytes(number % 3))  # some begin to say something
        with closing(port.offer()) as offer:
            (await take_up(offer)).close()
            (await offer.accept()).close()
        for each in silent:
            with closing(each), suppress(ConnectionResetError):
                each.settimeout(10)
                assert await asyncio.to_thread(each.recv, 1) == b""


async def test_who_drips_is_hung_up_on_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(far, "_GREETING_S", 0.3)
    async with LanePort(HOST, 0, PLAIN) as port, asyncio.timeout(10):
        said, slow = 0, socket.create_connection((HOST, port.number))
        with slow, suppress(ConnectionError):
            while said < far._SECRET_BYTES:
                said += slow.send(b"-")
                await asyncio.sleep(0.05)
        assert said < far._SECRET_BYTES


async def test_who_has_given_up_takes_no_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its secret is there, and read late: it has gone on without."""
    monkeypatch.setattr(far, "_GREETING_S", 60.0)
    monkeypatch.setattr(far, "_WELCOME_S", 0.2)
    async with LanePort(HOST, 0, PLAIN) as port:
        silent = [socket.create_connection((HOST, port.number)) for _ in range(far._GREETERS)]
        with closing(port.offer()) as offer:
            accepted = asyncio.create_task(offer.accept())
            with pytest.raises(TimeoutError):
                await take_up(offer)
            for each in silent:
                each.close()
            async with asyncio.timeout(20):
                while offer.secret in port._offers or port._greetings:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0)
            assert not accepted.done(), "it was greeted in the end, and said nothing to that"
            accepted.cancel()


async def test_a_loop_that_stalls_hangs_up_on_nobody_it_has_let_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(far, "_GREETING_S", 0.2)
    async with LanePort(HOST, 0, PLAIN) as port:
        with closing(port.offer()) as offer:
            taking = asyncio.create_task(take_up(offer))
            while not port._greetings:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            time.sleep(1.0)  # noqa: ASYNC251  (that is what stalls it)
            with await taking as caller, await offer.accept() as server:
                caller.sendall(b"here")
                assert server.recv(4) == b"here"
                server.sendall(b"too")
                assert caller.recv(3) == b"too"


async def refused_for_a_while(
    monkeypatch: pytest.MonkeyPatch, kind: type, does: str, want: Any
) -> None:
    """No lane is to be had while something is wanting, nor does anybody wait for it."""
    async with LanePort(HOST, 0, PLAIN) as port:
        with closing(port.offer()) as offer:
            with monkeypatch.context() as lacking:
                lacking.setattr(kind, does, want)
                for _ in range(3 * far._GREETERS):
                    with pytest.raises(OSError, match=REFUSED):
                        await take_up(offer)
            (await take_up(offer)).close()
            (await offer.accept()).close()


async def test_a_want_of_descriptors_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    def dup(self: socket.socket) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    await refused_for_a_while(monkeypatch, socket.socket, "dup", dup)


async def test_a_want_of_threads_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    started = Thread.start

    def start(self: Thread) -> None:
        if self.name.startswith("lane greeter"):
            raise RuntimeError("can't start new thread")
        started(self)

    await refused_for_a_while(monkeypatch, Thread, "start", start)


async def test_a_want_of_descriptors_for_who_comes_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(far, "_PAUSE_S", 0.0)
    loop, failed = asyncio.get_running_loop(), 0
    accept = loop.sock_accept

    async def wanting(listener: socket.socket) -> tuple[socket.socket, Any]:
        nonlocal failed
        if failed < 3 * far._GREETERS:
            failed += 1
            raise OSError(errno.EMFILE, "Too many open files")
        return await accept(listener)

    monkeypatch.setattr(loop, "sock_accept", wanting)
    async with LanePort(HOST, 0, PLAIN) as port:
        with closing(port.offer()) as offer:
            (await take_up(offer)).close()
            (await offer.accept()).close()


async def test_a_port_that_closes_hangs_up_on_who_has_said_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(far, "_GREETING_S", 60.0)
    async with asyncio.timeout(20):
        async with LanePort(HOST, 0, PLAIN) as port:
            silent = [socket.create_connection((HOST, port.number)) for _ in range(2)]
            await until(lambda: len(port._greetings) == 2)
        for each in silent:
            with closing(each), suppress(ConnectionResetError):
                each.settimeout(10)
                assert await asyncio.to_thread(each.recv, 1) == b""


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="no such option here")
async def test_both_ends_send_at_once_and_notice_who_is_gone() -> None:
    async with LanePort(HOST, 0, PLAIN) as port:
        with closing(port.offer()) as offer:
            caller = await take_up(offer)
            server = await offer.accept()
    with caller, server:
        for end in (caller, server):
            assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 40_000


async def test_what_nobody_takes_is_closed() -> None:
    async with LanePort(HOST, 0, PLAIN) as port:
        for early in (False, True):
            offer = port.offer()
            one, other = socket.socketpair()
            with one:
                if early:
                    offer.close()
                offer.come(other)
                offer.close()
                assert one.recv(1) == b""


async def test_whoever_waits_no_longer_leaves_no_connection() -> None:
    async with LanePort(HOST, 0, PLAIN) as port:
        with closing(port.offer()) as offer:
            taking = asyncio.create_task(take_up(offer))
            await asyncio.sleep(0)
            taking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await taking
            server = await offer.accept()
            with server:
                server.settimeout(10)
                assert await asyncio.to_thread(server.recv, 1) == b""


async def test_an_authority_need_be_no_root(tmp_path: Path) -> None:
    """Nor is it for gRPC."""
    tls = Authority("between", by=OURS).issue(tmp_path)
    async with LanePort(HOST, 0, tls) as port:
        with closing(port.offer()) as offer:
            (await take_up(offer, tls)).close()
            (await offer.accept()).close()


async def test_certificates_of_ones_own_that_cannot_be_read_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls, broken = OURS.issue(tmp_path / "whole"), OURS.issue(tmp_path / "broken")
    assert broken.key is not None
    broken.key.write_text("nothing")
    async with LanePort(HOST, 0, broken) as port:
        with closing(port.offer()) as offer:
            with pytest.raises(OSError, match=REFUSED):
                await take_up(offer, tls)
            with pytest.raises(StartupError, match="certificates cannot be read"):
                await take_up(offer, broken)
    (record,) = (each for each in caplog.records if each.name == far.__name__)
    assert record.levelname == "WARNING"
    assert "certificates cannot be read" in vars(record)["reason"]


async def test_the_log_has_few_strangers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", far.__name__)
    async with LanePort(HOST, 0, PLAIN) as port:
        for _ in range(20):
            with pytest.raises(OSError, match="hung up on"):
                await reach(f"{port.number} {SECRET}", ADDRESS, PLAIN)
    (record,) = (each for each in caplog.records if each.name == far.__name__)
    assert vars(record)["reason"] == "it knows no secret"


async def test_strangers_that_the_log_has_count_no_more(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", far.__name__)
    monkeypatch.setattr(far, "_TOLD_EVERY_S", 0.0)
    async with LanePort(HOST, 0, PLAIN) as port:
        for _ in range(3):
            with pytest.raises(OSError, match="hung up on"):
                await reach(f"{port.number} {SECRET}", ADDRESS, PLAIN)
        await until(lambda: len(caplog.records) == 3)
    assert [vars(each)["since_the_last"] for each in caplog.records] == [1, 1, 1]


@needs_ipv6
@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no socket for both here")
@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
async def test_any_address_is_of_both_families(host: str) -> None:
    async with LanePort(host, 0, PLAIN) as port:
        for address in ("127.0.0.1:7072", "[::1]:7072"):
            with closing(port.offer()) as offer:
                (await take_up(offer, address=address)).close()
                (await offer.accept()).close()


async def test_nobody_may_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(far, "_WELCOME_S", 0.2)
    async with LanePort(HOST, 0, PLAIN) as port:
        offer = port.offer()
    with pytest.raises(ConnectionRefusedError):
        await take_up(offer)
    with socket.create_server((HOST, 0)) as mute:  # takes connections and says nothing
        said = f"{mute.getsockname()[1]} {SECRET}"
        with pytest.raises(TimeoutError):
            await reach(said, ADDRESS, PLAIN)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request", b"-"])
async def test_somebody_else_may_be_there(answer: bytes) -> None:
    with socket.create_server((HOST, 0)) as other:
        said = f"{other.getsockname()[1]} {SECRET}"
        reached = asyncio.create_task(reach(said, ADDRESS, PLAIN))
        connection, _ = await asyncio.to_thread(other.accept)
        with connection:
            connection.send(answer)
            with pytest.raises(ConnectionError, match="somebody else"):
                await reached


@pytest.mark.parametrize(
    "offer",
    [
        "",
        "x",
        f"x {SECRET}",
        "7072 zz",
        f"-1 {SECRET}",
        f"0 {SECRET}",
        f"65536 {SECRET}",
        f"7072 {SECRET}00",
        f"7072 {b'GET / HTTP/1.1'.hex()}",
    ],
)
def test_what_is_no_offer_is_none(offer: str) -> None:
    with pytest.raises(ValueError, match=r"is no port|invalid literal|hexadecimal|a secret of"):
        connect(offer, ADDRESS, PLAIN)


@pytest.mark.parametrize("address", [ADDRESS, f"dns:///{ADDRESS}", "dns:///localhost:1"])
async def test_the_port_is_of_the_streams_host(address: str) -> None:
    async with LanePort(HOST, 0, PLAIN) as port:
        with closing(port.offer()) as offer:
            (await take_up(offer, address=address)).close()
            (await offer.accept()).close()
            with pytest.raises(ValueError, match="names no host"):
                await take_up(offer, address="unix:/tmp/socket")


async def test_a_port_in_use_is_said() -> None:
    async with LanePort(HOST, 0, PLAIN) as port:
        with pytest.raises(StartupError, match=f"port {port.number} on {HOST} is already in use"):
            LanePort(HOST, port.number, PLAIN)


async def test_new_certificates_are_shown_at_once(tmp_path: Path) -> None:
    tls = OURS.issue(tmp_path / "mine")
    caller = THEIRS.issue(tmp_path / "caller")
    async with LanePort(HOST, 0, tls) as port:
        with closing(port.offer()) as offer:
            with pytest.raises(OSError, match="CERTIFICATE"):
                await take_up(offer, caller)
            THEIRS.issue(tmp_path / "mine")
            (await take_up(offer, caller)).close()
            (await offer.accept()).close()
