from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from common.errors import StartupError
from launcher import rundir


def test_a_killed_runs_folder_goes_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    stale = tmp_path / f"paceline-{ended.pid}-abc"
    alive = tmp_path / f"paceline-{os.getpid()}-abc"
    others = [tmp_path / f"paceline-{name}-abc" for name in ("notes", "9" * 30)]
    for directory in (stale, alive, *others):
        directory.mkdir()

    created = rundir.create()
    assert not stale.exists()
    assert alive.exists()
    assert all(other.exists() for other in others)
    assert created.stat().st_mode & 0o077 == 0

    rundir.remove(created)
    rundir.remove(created)
    assert not created.exists()


def test_where_the_temporary_folder_is_too_deep_for_a_socket_another_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 107)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))

    created = rundir.create()
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(rundir.socket_path(created)))
        assert created.stat().st_mode & 0o077 == 0
        assert list(deep.iterdir()) == []
    finally:
        rundir.remove(created)


def test_where_nothing_can_be_written_it_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(StartupError, match=r"no folder for logs and socket: .*gone.*; set TMPDIR"):
        rundir.create()
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", list)
    with pytest.raises(StartupError, match=r"No usable temporary directory .*; set TMPDIR"):
        rundir.create()
