"""One child process: started, listened to, stopped.

Owns the child's pipes, its log file and its death. What is to be run, and in which order, is
`launcher.cluster`'s business.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TextIO

TETHER = Path(__file__).with_name("tether.py")
JOIN_S = 1.0  # a pipe closes with its process, unless a grandchild holds it


class Process:
    """A child that dies with us, however we die.

    It runs in a session of its own, so that Ctrl-C at the terminal reaches us alone and we decide
    who stops first. Start it from a thread that lives as long as the child should.

    Args:
        name: What to call it in messages.
        command: Program and arguments.
        log: File that gets everything the child writes.
        env: Environment of the child; ours if not given.
        echo: Where to copy the child's lines to, each after its name.
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
        self.announced_port: int | None = None
        self._echo = echo
        self._log_file = log.open("w", encoding="utf-8")
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
        self._log_file.close()

    def obituary(self) -> str:
        """Say how the child ended, in its own words if it left an `error: ...` line."""
        for pump in self._pumps:
            pump.join(JOIN_S)
        lines = self.log.read_text(encoding="utf-8").splitlines()
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
        with self._lock:
            if not self._log_file.closed:
                self._log_file.write(line)
                self._log_file.flush()
        if self._echo:
            print(f"{self.name} | {line}", end="", file=self._echo, flush=True)
        if self.announced_port is None:
            self.announced_port = announced_port(line)


def tethered(command: Sequence[str]) -> list[str]:
    """Return the command such that it dies with this process, however this process dies."""
    return [sys.executable, "-I", "-S", str(TETHER), str(os.getpid()), *command]


def announced_port(line: str) -> int | None:
    """Read a service's announcement, `{"event": "serving", "service": "verifier", "port": 7071}`.

    Returns:
        The port, or None where the line is anything else.
    """
    if not line.startswith("{"):
        return None
    try:
        message = json.loads(line)
    except ValueError:
        return None
    port = message.get("port") if message.get("event") == "serving" else None
    return port if isinstance(port, int) else None
