"""The files a run reads, told by what is in them: it goes on only with the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from common.model import weight_files

_WHOLE_BYTES = 64 << 20
"""Larger files are looked at in pieces spread over their length."""

_PIECES, _PIECE_BYTES = 256, 1 << 16
_BESIDE_WEIGHTS = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def contents(files: Iterable[Path], models: Iterable[Path] = ()) -> dict[str, str]:
    """What is in files and in directories of models, by path.

    Without those that cannot be read, and without pipes, which can be read only once.
    """
    found = {str(file): _digest([file]) for file in files}
    found |= {str(model): of_model(model) for model in models}
    return {path: digest for path, digest in found.items() if digest}


def of_model(directory: Path) -> str:
    """What is in a model's files; "" where they cannot be read: who loads it says why."""
    try:
        names = [*weight_files.names(directory), *_BESIDE_WEIGHTS]
        ends = _ends(directory / "generation_config.json")
    except Exception:  # of an index that is none
        return ""
    return _digest([directory / name for name in names if (directory / name).is_file()], ends)


def _ends(file: Path) -> bytes:
    """What ends a text: all that counts here of the settings for generation."""
    settings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return json.dumps(settings.get("eos_token_id")).encode()


def _digest(files: Iterable[Path], beside: bytes = b"") -> str:
    found = hashlib.sha256(beside)
    size = 0
    try:
        for file in files:
            if not file.is_file():
                return ""
            size += file.stat().st_size
            found.update(_part(file))
    except OSError:
        return ""
    return f"{size}:{found.hexdigest()}"


def _part(file: Path) -> bytes:
    size = file.stat().st_size
    with file.open("rb") as stream:
        if size <= _WHOLE_BYTES:
            return hashlib.file_digest(stream, "sha256").digest()
        found = hashlib.sha256(size.to_bytes(8))
        for piece in range(_PIECES):
            stream.seek((size - _PIECE_BYTES) * piece // (_PIECES - 1))
            found.update(stream.read(_PIECE_BYTES))
        return found.digest()
