"""The private folder of one run: logs and the store's socket."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

import psutil

from common.errors import StartupError

NAME = re.compile(r"paceline-(\d{1,9})-")  # no id of a process is longer

_SOCKET_PATH_BYTES = 107
"""Longest path of a unix socket on Linux."""


def create() -> Path:
    """Make a folder that only this user can read, and remove those of runs that were killed.

    It lies in /tmp where the temporary folder's path is too long for the store's socket.

    Raises:
        StartupError: There is no place for it.
    """
    try:
        directory = _create_in(Path(tempfile.gettempdir()))
        if len(os.fsencode(socket_path(directory))) > _SOCKET_PATH_BYTES:
            remove(directory)
            directory = _create_in(Path("/tmp"))
    except OSError as error:
        raise StartupError(f"no folder for logs and socket: {error}; set TMPDIR") from error
    return directory


def socket_path(directory: Path) -> Path:
    """Return the store's socket in a folder."""
    return directory / "store.sock"


def _create_in(parent: Path) -> Path:
    """Make the folder in another, where those of runs that were killed are removed."""
    sweep(parent)
    return Path(tempfile.mkdtemp(prefix=f"paceline-{os.getpid()}-", dir=parent))


def remove(directory: Path) -> None:
    """Remove the folder; what is gone already is no error."""
    shutil.rmtree(directory, ignore_errors=True)


def sweep(parent: Path) -> None:
    """Remove this user's folders whose process is no more.

    Args:
        parent: Where the folders lie.
    """
    for directory in parent.glob("paceline-*-*"):
        owner = NAME.match(directory.name)
        if owner and not psutil.pid_exists(int(owner[1])) and is_ours(directory):
            remove(directory)


def is_ours(directory: Path) -> bool:
    """Tell whether the folder belongs to this user; another user's run is not ours to judge."""
    try:
        return directory.stat().st_uid == os.getuid()
    except OSError:
        return False
