"""What a run was begun with, in a file: it goes on only with the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import reason
from training.errors import RunError
from training.whole import replacing

INPUTS = "inputs"
"""The setting that holds what is in the files that are read, as `training.inputs` tells it."""


class Settings:
    """Settings of a run and the file that keeps them.

    Args:
        file: The file; its folder is made where it is missing.
        of: What the run leaves, for messages.
        wanted: The settings, by name.

    Raises:
        RunError: The folder cannot be made.
    """

    def __init__(self, file: Path, of: Path, wanted: Mapping[str, Any]) -> None:
        self.file = file
        self._of = of
        self._wanted = json.loads(json.dumps(wanted, default=str))
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{file.parent}: cannot be made: {error.strerror}") from error

    def check(self) -> None:
        """Compares with those in the file.

        Raises:
            RunError: They or files that are read are others, or they cannot be read.
        """
        there = self._read()
        names = (there.keys() | self._wanted.keys()) - {INPUTS}
        for name in sorted(names, key=lambda name: (name != "kind", name)):  # that says most
            if there.get(name) != self._wanted.get(name):
                raise RunError(
                    f"{self._of} holds a run with {name} {there.get(name)}, not "
                    f"{self._wanted.get(name)}: give another --out, or the same settings to go on"
                )
        known = there.get(INPUTS, {})  # runs of older versions have none
        for path, digest in self._wanted.get(INPUTS, {}).items():
            if known.get(path, digest) != digest:
                raise RunError(
                    f"{self._of} holds a run that began with something else in {path}: give "
                    "another --out, or what was there to go on"
                )

    def _read(self) -> dict[str, Any]:
        try:
            there = json.loads(self.file.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"{self.file}: cannot be read: {reason(error)}") from error
        if not (isinstance(there, dict) and isinstance(there.get(INPUTS, {}), dict)):
            raise RunError(f"{self.file}: holds no settings of a run: give another --out")
        return there

    def keep(self) -> None:
        """Writes the file.

        Raises:
            RunError: It cannot be written.
        """
        with replacing(self.file) as new:
            new.write_text(json.dumps(self._wanted, indent=2) + "\n", encoding="utf-8")
