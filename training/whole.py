"""Files that are written whole, or not at all, and by one run at a time."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from training.errors import RunError, writing


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Yields the path to write instead of a file, which it takes the place of at the end.

    Raises:
        RunError: It cannot be written: what was there is left.
    """
    new = file.with_name(f"{file.name}.new")
    with writing(file):
        yield new
        new.replace(file)


@contextmanager
def alone(file: Path, of: Path) -> Iterator[None]:
    """Holds a file's lock, and makes the file where it is missing.

    Args:
        file: The file.
        of: What it keeps other runs out of, for the message.

    Raises:
        RunError: Another run holds it, or the file cannot be made.
    """
    with writing(file):
        lock = file.open("ab")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(f"{of}: another run is at work there") from error
        except OSError:
            pass  # a file system without locks
        yield
