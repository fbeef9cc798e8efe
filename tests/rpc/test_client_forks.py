"""A client that a forked child inherits, with a generation under way in its parent."""

from __future__ import annotations

import os
import subprocess
import sys

import paceline
import pytest
from paceline import _process

from tests.rpc.scripted_gateway import scripted_gateway

# The child has ten seconds.
PARENT = """
import multiprocessing, sys
import paceline

client = paceline.Client(sys.argv[1])
under_way = client.generate("hang")
chunks = iter(under_way)
next(chunks)

def child():
    {child}

forked = multiprocessing.get_context("fork").Process(target=child)
forked.start()
forked.join(10)
print(forked.exitcode, flush=True)
forked.kill()
sys.stdin.read()
"""


def test_another_process_takes_another_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_gateway() as gateway, paceline.Client(gateway.address) as client:
        former = client._line.channel
        monkeypatch.setattr(_process, "_mark", object())
        assert client.tokenize("ab") == [97, 98]
        assert client._line.channel is not former
        monkeypatch.undo()
        assert client._line.channel is former


def test_what_a_fork_brought(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_gateway() as gateway, paceline.Client(gateway.address) as client:
        whole, cancelled, under_way = map(client.generate, ("Once", "hang", "hang"))
        result = whole.result()
        cancelled.cancel()
        monkeypatch.setattr(_process, "_mark", object())
        assert whole.result() == result
        with pytest.raises(paceline.errors.CancelledError):
            cancelled.result()
        for _ in range(2):
            with pytest.raises(RuntimeError, match="belongs to the process"):
                under_way.result()
        under_way.cancel()
        assert under_way._call.is_active(), "it is its parent's"
        monkeypatch.undo()


async def test_an_asyncio_generation_is_its_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_gateway() as gateway:
        async with paceline.AsyncClient(gateway.address) as client:
            under_way = client.generate("hang")
            monkeypatch.setattr(_process, "_mark", object())
            for _ in range(2):
                with pytest.raises(RuntimeError, match="belongs to the process"):
                    await under_way.result()
            monkeypatch.undo()


@pytest.mark.parametrize(
    "child",
    [
        "client.close()",
        "under_way.cancel()",
        "global client, under_way, chunks; client = under_way = chunks = None",
    ],
)
def test_a_child_leaves_its_parents(child: str) -> None:
    assert after_fork(child) == ("0", "")


def test_a_generation_is_its_parents() -> None:
    exitcode, stderr = after_fork("under_way.result()")
    assert exitcode == "1"
    assert "RuntimeError: this generation belongs to the process that started it" in stderr


def after_fork(child: str) -> tuple[str, str]:
    """Returns the child's exit code and what it wrote; its parent's generation goes on."""
    with (
        scripted_gateway() as gateway,
        subprocess.Popen(
            [sys.executable, "-c", PARENT.format(child=child), gateway.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "GRPC_VERBOSITY": "NONE"},
            text=True,
        ) as parent,
    ):
        assert parent.stdout is not None
        exitcode = parent.stdout.readline().strip()
        assert not gateway.cancelled.wait(0.1)
        return exitcode, parent.communicate(timeout=10)[1]
