from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import StartupError
from launcher.process import Process, announced_port, message

ANNOUNCE = 'print(\'{"event": "serving", "service": "x", "port": 4242}\', flush=True)'
WAIT = "import time; time.sleep(60)"
Eventually = Callable[[Callable[[], object]], bool]


def child(tmp_path: Path, code: str, echo: io.StringIO | None = None) -> Process:
    return Process("x", [sys.executable, "-c", code], log=tmp_path / "x.log", echo=echo)


@pytest.mark.parametrize(
    ("line", "told", "port"),
    [
        ('{"event": "serving", "service": "x", "port": 7071}\n', True, 7071),
        ('{"event": "loaded", "port": 7071}\n', True, None),
        ('{"event": "serving", "port": "7071"}\n', True, None),
        ("{not json\n", False, None),
        ("serving on 7071\n", False, None),
    ],
)
def test_only_announcements_are_taken_for_such(line: str, told: bool, port: int | None) -> None:
    found = message(line)
    assert (found is not None) == told
    assert announced_port(found or {}) == port


def test_an_announcement_is_heard_among_other_lines(tmp_path: Path, eventually: Eventually) -> None:
    process = child(tmp_path, f"print('hello'); {ANNOUNCE}; {WAIT}")
    try:
        assert eventually(lambda: process.announced_port == 4242)
        assert process.exit_code() is None
    finally:
        process.stop(5)
    assert process.exit_code() == -signal.SIGTERM
    assert (tmp_path / "x.log").read_text().startswith("hello\n")


def test_its_lines_are_copied_with_its_name(tmp_path: Path, eventually: Eventually) -> None:
    echo = io.StringIO()
    process = child(tmp_path, "print('out'); import sys; print('err', file=sys.stderr)", echo)
    assert eventually(lambda: process.exit_code() == 0)
    process.stop(1)
    assert sorted(echo.getvalue().splitlines()) == ["x | err", "x | out"]


@pytest.mark.parametrize("copied", [False, True])
def test_what_it_warns_of_is_kept_unless_all_is_copied(
    copied: bool, tmp_path: Path, eventually: Eventually
) -> None:
    lines = [
        '{"ts": "1", "level": "info", "service": "x", "event": "loaded"}',
        '{"ts": "2", "level": "warning", "service": "x", "event": "away", "name": "a", "n": 3}',
        '{"ts": "3", "level": "error", "service": "x", "event": "failed", "exception": "long"}',
        "a warning that is no message",
    ]
    process = child(tmp_path, f"print({chr(10).join(lines)!r})", io.StringIO() if copied else None)
    assert eventually(lambda: process.exit_code() == 0)
    process.stop(1)
    assert process.new_warnings() == ([] if copied else ["away (name a, n 3)", "failed"])
    assert process.new_warnings() == []


def test_where_no_log_can_begin_it_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"no log of the test: .*gone.*; set TMPDIR"):
        Process("test", ["true"], log=tmp_path / "gone" / "log")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
def test_one_whose_log_cannot_be_written_is_heard_all_the_same(eventually: Eventually) -> None:
    code = f"print('é' * 100_000); {ANNOUNCE}; print('last', flush=True); {WAIT}"
    process = Process("x", [sys.executable, "-c", code], log=Path("/dev/full"))
    try:
        assert eventually(lambda: process.announced_port == 4242)
        assert process.exit_code() is None
    finally:
        process.stop(5)
    assert process.exit_code() == -signal.SIGTERM
    assert process.new_warnings() == ["its log cannot be written (No space left on device)"]


def test_one_whose_copied_lines_nobody_reads_is_heard_all_the_same(
    tmp_path: Path, eventually: Eventually
) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    process = child(tmp_path, f"print('hello', flush=True); {ANNOUNCE}; {WAIT}", Closed())
    try:
        assert eventually(lambda: process.announced_port == 4242)
    finally:
        process.stop(5)
    assert (tmp_path / "x.log").read_text().startswith("hello\n")


def test_one_that_fails_is_quoted(tmp_path: Path, eventually: Eventually) -> None:
    process = child(tmp_path, "import sys; print('noise'); sys.exit('error: no such model: /m')")
    assert eventually(lambda: process.exit_code() == 1)
    assert process.obituary() == "x: no such model: /m"
    process.kill()


def test_one_that_crashes_leaves_the_end_of_its_log(tmp_path: Path, eventually: Eventually) -> None:
    process = child(tmp_path, "raise RuntimeError('broken')")
    assert eventually(lambda: process.exit_code() is not None)
    obituary = process.obituary()
    assert obituary.startswith("x died (exit 1)\n")
    assert "RuntimeError: broken" in obituary
    process.kill()


def test_its_log_is_bounded_and_quoted_across_its_beginning(
    tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.process._MOST_LOG_BYTES", 1000)
    monkeypatch.setattr("launcher.process._END_BYTES", 500)
    process = child(tmp_path, "for line in range(305): print(f'{line:09}')")
    assert eventually(lambda: process.exit_code() == 0)
    last = [f"  {line:09}" for line in range(290, 305)]
    assert process.obituary().splitlines() == ["x died (exit 0)", *last]
    process.kill()
    logs = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert logs == {"x.log": 50, "x.log.1": 1000}


def test_one_that_is_killed_names_the_signal(tmp_path: Path, eventually: Eventually) -> None:
    process = child(tmp_path, WAIT)
    os.kill(process.pid, signal.SIGKILL)
    assert eventually(lambda: process.exit_code() is not None)
    assert process.obituary() == "x died (killed by SIGKILL)"
    process.kill()


def test_one_that_will_not_stop_is_killed(tmp_path: Path, eventually: Eventually) -> None:
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {ANNOUNCE}; {WAIT}"
    process = child(tmp_path, code)
    assert eventually(lambda: process.announced_port)
    start = time.monotonic()
    process.stop(0.3)
    assert 0.3 <= time.monotonic() - start < 5
    assert process.exit_code() == -signal.SIGKILL


def test_stopping_twice_is_harmless(tmp_path: Path) -> None:
    process = child(tmp_path, WAIT)
    process.stop(5)
    process.stop(5)
    process.kill()


def test_it_leaves_our_process_group(tmp_path: Path) -> None:
    """So Ctrl-C at the terminal reaches the launcher alone."""
    process = child(tmp_path, WAIT)
    try:
        assert os.getpgid(process.pid) == process.pid != os.getpgid(0)
    finally:
        process.stop(5)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has parent-death signals")
def test_it_dies_when_we_are_killed(tmp_path: Path, gone: Callable[[int], bool]) -> None:
    launcher = f"""
import pathlib, sys, time
from launcher.process import Process
code = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
log = pathlib.Path({str(tmp_path)!r}) / "x.log"
print(Process("x", [sys.executable, "-c", code], log=log).pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", launcher], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        parent.kill()
    assert gone(pid)
