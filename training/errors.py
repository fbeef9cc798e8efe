"""What is wrong with the data or the folder a training run was given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.errors import StartupError, first_line


class DataError(StartupError):
    """A file of training data cannot be used; names the file and says why."""


class RunError(StartupError):
    """A training run cannot start or go on with these settings in this folder."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Names a file or folder that cannot be written, on a full disk, say, and tells why.

    Args:
        path: What is written meanwhile.

    Raises:
        RunError: It cannot be.
    """
    try:
        yield
    except Exception as error:  # torch, safetensors and tokenizers have kinds of their own
        behind = (error, error.__context__)  # torch's hides the system's
        said = (one.strerror for one in behind if isinstance(one, OSError) and one.strerror)
        problem = next(said, first_line(error))
        raise RunError(f"{path}: cannot be written: {problem}") from error
