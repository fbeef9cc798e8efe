"""Simulated workers, as the process sees them that has them started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from bench.simulated.spec import WorkerSpec
from common.errors import StartupError
from launcher.process import OFFLINE, tethered

START_S = 300.0
END_S = 60.0
ROOT = Path(__file__).parents[2]


@dataclass
class _Worker:
    port: int = 0
    exit: int | None = None


class SimulatedWorkers:
    """Worker processes, as a context manager: they are gone after.

    Args:
        log: File that gets what they write to standard error.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._changed = threading.Condition()
        self._workers: dict[str, _Worker] = {}

    def __enter__(self) -> Self:
        paths = (str(ROOT), str(ROOT / "client"), os.environ.get("PYTHONPATH", ""))
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            **OFFLINE,
            "OMP_NUM_THREADS": "1",
        }
        with self._log.open("wb") as errors:
            self._nursery = subprocess.Popen(
                tethered([sys.executable, "-P", "-m", "bench.simulated.nursery"]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                text=True,
            )
        self._listener = threading.Thread(target=self._listen, name="nursery", daemon=True)
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        self._nursery.stdin.close()
        try:
            self._nursery.wait(END_S)
        except subprocess.TimeoutExpired:
            self._nursery.kill()
            self._nursery.wait()
        self._listener.join(END_S)
        self._nursery.stdout.close()

    def start(self, *specs: WorkerSpec) -> list[str]:
        """Starts workers together; returns their addresses once all of them serve.

        Raises:
            StartupError: One of them did not start.
        """
        assert self._nursery.stdin is not None
        for spec in specs:
            self._workers[spec.name] = _Worker()
            self._nursery.stdin.write(spec.line() + "\n")
        self._nursery.stdin.flush()
        return [f"127.0.0.1:{self._port(spec.name)}" for spec in specs]

    def ended(self, name: str) -> int:
        """Waits for the end of a worker that was told to stop; returns its exit status.

        Raises:
            TimeoutError: It does not end.
        """
        worker = self._workers[name]
        with self._changed:
            if not self._changed.wait_for(lambda: worker.exit is not None, END_S):
                raise TimeoutError(f"{name} did not end within {END_S:g} s")
        assert worker.exit is not None
        return worker.exit

    def _port(self, name: str) -> int:
        worker = self._workers[name]
        with self._changed:
            self._changed.wait_for(lambda: worker.port or worker.exit is not None, START_S)
        if not worker.port:
            raise StartupError(f"{name} did not start: {self._log.read_text()[-2000:]}")
        return worker.port

    def _listen(self) -> None:
        assert self._nursery.stdout is not None
        for line in self._nursery.stdout:
            news = json.loads(line)
            with self._changed:
                worker = self._workers[news["name"]]
                worker.port = news.get("port", worker.port)
                worker.exit = news.get("exit")
                self._changed.notify_all()
        with self._changed:  # the nursery is gone, and all workers with it
            for worker in self._workers.values():
                worker.exit = -9 if worker.exit is None else worker.exit
            self._changed.notify_all()
