"""Starts workers as children of a process that has loaded everything they need.

    python -m bench.simulated.nursery

reads a `WorkerSpec` a line, forks a worker for each, and prints what becomes of them, a line of
JSON each: `{"name", "port"}` once it serves, `{"name", "exit"}` when it is gone. It ends with its
standard input.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
import traceback

from bench.simulated import slow_worker
from bench.simulated.spec import WorkerSpec
from launcher.tether import die_with


def main() -> None:
    """Serves until standard input ends; then all workers end, too."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # for its byte in the pipe
    signal.set_wakeup_fd(write)
    names: dict[int, str] = {}
    rest = b""
    with selectors.DefaultSelector() as waiting:
        waiting.register(0, selectors.EVENT_READ)
        waiting.register(read, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.fd == read:
                    os.read(read, 4096)
                    _bury(names)
                    continue
                data = os.read(0, 1 << 16)
                if not data:
                    for pid in names:
                        os.kill(pid, signal.SIGKILL)
                    return
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    spec = WorkerSpec.read(line.decode())
                    names[_fork(spec)] = spec.name


def say(**what: object) -> None:
    """Prints one line, whole, whoever else prints."""
    os.write(1, json.dumps(what).encode() + b"\n")


def _fork(spec: WorkerSpec) -> int:
    """Starts a worker; returns its process id."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        die_with(parent)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the nursery's ends only with the nursery
        slow_worker.run(spec, on_ready=lambda port: say(name=spec.name, port=port))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _bury(names: dict[int, str]) -> None:
    """Tells of those that are gone."""
    while names:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        say(name=names.pop(pid), exit=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
