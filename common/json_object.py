"""Files that hold one JSON object, as a model's do; whoever wrote them, they may hold anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from common.errors import ModelError, reason


def read(path: Path) -> dict[str, Any]:
    """Returns the object in a file.

    Raises:
        ModelError: There is no such file, or it holds something else; names it and says what.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: cannot be read: {reason(error)}") from error
    if not isinstance(found, dict):
        raise ModelError(f"{path}: must hold a JSON object")
    return found
