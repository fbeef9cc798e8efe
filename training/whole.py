"""Files that are written whole, or not at all, and by one run at a time."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from training.errors import RunError, writing


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """Yields the path to write instead of a file or a folder, where nothing is left if that fails.

    Raises:
        RunError: It cannot be written.
    """
    new = path.with_name(f"{path.name}.new")
    try:
        with writing(path):
            _remove(new)
            yield new
    except BaseException:
        with suppress(OSError):
            _remove(new)
        raise


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Yields the path to write instead of a file, which it takes the place of at the end.

    Raises:
        RunError: It cannot be written: what was there is left.
    """
    with beside(file) as new:
        yield new
        new.replace(file)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


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
