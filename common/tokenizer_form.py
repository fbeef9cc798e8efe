"""One form for all definitions of a tokenizer by which ids are the same.

Who saves a tokenizer again, with a fine-tuned model for example, writes `tokenizer.json` as
`tokenizers` and `transformers` write it today: other than it was, of the same tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SAVERS = {"truncation", "padding"}
"""Settings of whoever saved the file."""

_BPE = {"byte_fallback": False, "ignore_merges": False}
"""What older files leave out of a model."""

_BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
"""In a decoder, and around a text, no setting of these matters."""

_A, _B = ({"Sequence": {"id": text, "type_id": 0}} for text in "AB")
_NOTHING_AROUND = {
    "type": "TemplateProcessing",
    "single": [_A],
    "pair": [_A, _B],
    "special_tokens": {},
}


def plain(definition: Mapping[str, Any]) -> dict[str, Any]:
    """A definition as it is written, without settings of whoever saved it."""
    return {key: value for key, value in definition.items() if key not in _SAVERS}


def canonical(definition: Mapping[str, Any]) -> dict[str, Any]:
    """A definition as it would be written today.

    Args:
        definition: What a `tokenizer.json` holds, or any other object.
    """
    around = _parts(definition.get("post_processor"), splitting=False)
    changed = {
        "model": _model(definition.get("model")),
        "pre_tokenizer": _parts(definition.get("pre_tokenizer"), splitting=True),
        "post_processor": _NOTHING_AROUND if around in (None, _BYTES) else around,
        "decoder": _parts(definition.get("decoder"), splitting=False),
    }
    return plain(definition) | changed


def _model(model: Any) -> Any:
    if not isinstance(model, dict) or not isinstance(model.get("merges"), list):
        return model
    merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    return _BPE | model | {"merges": merges}


def _parts(part: Any, *, splitting: bool) -> Any:
    """A part, or a sequence of them; of those that split a text, offsets alone do not matter."""
    if isinstance(part, list):
        return [_parts(each, splitting=splitting) for each in part]
    if not isinstance(part, dict):
        return part
    if part.get("type") == "ByteLevel":
        return _BYTES | part | {"trim_offsets": True} if splitting else _BYTES
    return {key: _parts(value, splitting=splitting) for key, value in part.items()}
