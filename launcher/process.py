"""One child process: started, listened to, stopped.

Owns the child's pipes, its log file and its death. What is to be run, and in which order, is
`launcher.cluster`'s business.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TextIO

from common.errors import StartupError

TETHER = Path(__file__).with_name("tether.py")
OFFLINE = {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
"""In the environment of who loads models: they are local, so that a look at the hub could only
delay the start or fail it, and a progress bar would only fill the logs."""

JOIN_S = 1.0  # a pipe closes with its process, unless a grandchild holds it

_MOST_LOG_BYTES = 32 << 20
"""A log of that size is put aside, and another begins; the one put aside before goes."""
_END_BYTES = 64 << 10
"""Of a log; all that is read of it again."""

_MOST_WARNINGS = 100
_WARNINGS = ("warning", "error")
_NO_FACTS = frozenset({"ts", "level", "service", "event", "exception", "trace_id", "span_id"})
"""Of a log line; whoever wants these reads the log."""


class Process:
    """A child that dies with us, however we die.

    It runs in a session of its own, so that Ctrl-C at the terminal reaches us alone and we decide
    who stops first. Start it from a thread that lives as long as the child should.

    Args:
        name: What to call it in messages.
        command: Program and arguments.
        log: File that gets everything the child writes; bounded, with a former one beside it.
        env: Environment of the child; ours if not given.
        echo: Where to copy the child's lines to, each after its name.

    Raises:
        StartupError: Its log cannot be written.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        echo: TextIO | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._former_log = log.with_name(f"{log.name}.1")
        self.announced_port: int | None = None
        self._warnings: deque[str] = deque(maxlen=_MOST_WARNINGS)
        self._echo = echo
        try:
            self._log_file = log.open("w", encoding="utf-8")
        except OSError as error:
            raise StartupError(f"no log of the {name}: {error}; set TMPDIR") from error
        self._log_whole = True
        self._lock = threading.Lock()
        self._child = subprocess.Popen(
            tethered(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
            env=env,
        )
        self._pumps = [
            threading.Thread(target=self._pump, args=(stream,), name=f"{name} output", daemon=True)
            for stream in (self._child.stdout, self._child.stderr)
        ]
        for pump in self._pumps:
            pump.start()

    @property
    def pid(self) -> int:
        """Process id; the same before and after the child becomes its command."""
        return self._child.pid

    def new_warnings(self) -> list[str]:
        """Return what it has warned of since this was asked last, a line each.

        Where all lines are copied, its own words are not among them.
        """
        return [self._warnings.popleft() for _ in range(len(self._warnings))]

    def exit_code(self) -> int | None:
        """Return its exit status, minus the signal's number if one ended it, or None if it runs."""
        return self._child.poll()

    def stop(self, grace_s: float) -> None:
        """End the child: SIGTERM, and SIGKILL when the grace is over.

        Args:
            grace_s: Seconds it gets to finish what it does.
        """
        try:
            if self._child.poll() is None:
                self._child.terminate()
                self._child.wait(grace_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.kill()

    def kill(self) -> None:
        """End the child and whatever it started, at once, and let go of pipes and log."""
        if self._child.poll() is None:
            os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
        for pump in self._pumps:
            pump.join(JOIN_S)
        with contextlib.suppress(OSError):  # told of when it could not be written
            self._log_file.close()

    def obituary(self) -> str:
        """Say how the child ended, in its own words if it left an `error: ...` line."""
        for pump in self._pumps:
            pump.join(JOIN_S)
        lines = self._last_lines()
        errors = [line for line in lines if line.startswith("error: ")]
        if errors:
            return f"{self.name}: {errors[-1].removeprefix('error: ')}"
        code = self.exit_code()
        ended = f"killed by {signal.Signals(-code).name}" if code and code < 0 else f"exit {code}"
        return "\n".join([f"{self.name} died ({ended})", *(f"  {line}" for line in lines[-15:])])

    def _pump(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._heard(line)

    def _heard(self, line: str) -> None:
        self._keep(line)
        if self._echo:
            with contextlib.suppress(OSError):  # nobody reads any more
                print(f"{self.name} | {line}", end="", file=self._echo, flush=True)
        if (told := message(line)) is None:
            return
        if self.announced_port is None:
            self.announced_port = announced_port(told)
        if self._echo is None and told.get("level") in _WARNINGS:
            self._warnings.append(described(told))

    def _keep(self, line: str) -> None:
        """Write to the log; where the disk is full, its lines are lost but the child goes on."""
        with self._lock:
            if self._log_file.closed:
                return
            try:
                if os.fstat(self._log_file.fileno()).st_size >= _MOST_LOG_BYTES:
                    self._begin_anew()
                self._log_file.write(line)
                self._log_file.flush()
            except OSError as error:
                if self._log_whole:
                    self._warnings.append(f"its log cannot be written ({error.strerror})")
                self._log_whole = False

    def _begin_anew(self) -> None:
        with contextlib.suppress(FileNotFoundError):  # somebody has tidied up
            self.log.replace(self._former_log)
        former, self._log_file = self._log_file, self.log.open("w", encoding="utf-8")
        former.close()

    def _last_lines(self) -> list[str]:
        """Read the end of its log, and of the former one: it may have begun anew just now."""
        logs = (log for log in (self._former_log, self.log) if log.exists())
        return b"".join(map(_end, logs)).decode("utf-8", "replace").splitlines()


def tethered(command: Sequence[str]) -> list[str]:
    """Return the command such that it dies with this process, however this process dies."""
    return [sys.executable, "-I", "-S", str(TETHER), str(os.getpid()), *command]


def message(line: str) -> dict[str, Any] | None:
    """Read a line of a service's log, or its announcement; None where it is anything else."""
    if not line.startswith("{"):
        return None
    try:
        return dict(json.loads(line))
    except ValueError:
        return None


def announced_port(told: Mapping[str, Any]) -> int | None:
    """Read a service's announcement, `{"event": "serving", "service": "verifier", "port": 7071}`.

    Returns:
        The port, or None where the message is anything else.
    """
    port = told.get("port") if told.get("event") == "serving" else None
    return port if isinstance(port, int) else None


def described(told: Mapping[str, Any]) -> str:
    """Return what happened and its facts in one line: `drafter does not fit (drafter …)`."""
    facts = ", ".join(f"{name} {value}" for name, value in told.items() if name not in _NO_FACTS)
    return f"{told.get('event', '')}{facts and f' ({facts})'}"


def _end(log: Path) -> bytes:
    with log.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - _END_BYTES, 0))
        return file.read()
