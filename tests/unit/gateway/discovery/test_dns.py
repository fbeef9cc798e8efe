"""A name's addresses, looked up again and again."""

import asyncio
import logging
import socket

import pytest

from gateway.discovery.dns import DnsResolver, lookup
from gateway.discovery.target import DnsTarget
from tests.unit.gateway.discovery.reports import Reports

TARGET = DnsTarget(host="workers", port=7072)


class NameServer:
    """Answers in turn; the last answer for ever."""

    def __init__(self, *answers: frozenset[str] | OSError) -> None:
        self._answers = list(answers)

    async def __call__(self, host: str, port: int) -> frozenset[str]:
        assert (host, port) == (TARGET.host, TARGET.port)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer


async def follow(server: NameServer, *expected: str) -> Reports:
    reports = Reports()
    task = asyncio.create_task(DnsResolver(TARGET, 0.001, server).follow(reports))
    await reports.until(*expected)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return reports


async def test_addresses_come_and_go() -> None:
    one, two = frozenset({"a:1"}), frozenset({"a:1", "b:1"})
    reports = await follow(NameServer(one, two, frozenset(), one, frozenset({"c:1"})), "c:1")
    assert reports.seen[:5] == [one, two, frozenset(), one, {"c:1"}]


async def test_a_silent_name_server_changes_nothing_and_is_told_once(caplog) -> None:
    away = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    with caplog.at_level(logging.WARNING):
        server = NameServer(frozenset({"a:1"}), away, away, away, frozenset({"b:1"}))
        reports = await follow(server, "b:1")
    assert reports.seen[:2] == [{"a:1"}, {"b:1"}]
    (record,) = caplog.records
    assert record.message == "name server does not answer"
    assert "Temporary failure" in record.reason


async def test_a_real_look_up() -> None:
    assert await lookup("127.0.0.1", 7072) == {"127.0.0.1:7072"}
    assert await lookup("::1", 7072) == {"[::1]:7072"}
    found = await lookup("localhost", 7072)
    assert found in ({"127.0.0.1:7072"}, {"[::1]:7072"})


async def test_a_name_without_addresses_has_no_workers(monkeypatch) -> None:
    async def absent(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", absent)
    assert await lookup("workers", 7072) == frozenset()


async def test_other_errors_are_not_absence(monkeypatch) -> None:
    async def fails(*_, **__):
        raise socket.gaierror(socket.EAI_AGAIN, "later")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", fails)
    with pytest.raises(OSError, match="later"):
        await lookup("workers", 7072)
