"""What is wrong with the data or the folder a training run was given."""

from __future__ import annotations

from common.errors import StartupError


class DataError(StartupError):
    """A file of training data cannot be used; names the file and says why."""


class RunError(StartupError):
    """A training run cannot start or go on with these settings in this folder."""
