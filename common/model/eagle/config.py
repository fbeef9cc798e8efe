"""`config.json` of EAGLE-3 heads, as their trainers write it.

Two forms are read. The authors' is a Llama's with one layer, and with

    vocab_size        V, the target's
    draft_vocab_size  W, how many tokens the head can guess; V where it is not there
    target_hidden_size, norm_before_residual
    eagle_config      {eagle_aux_hidden_state_layer_ids}, by SpecForge and others

That of `speculators` (`speculators_model_type` is eagle3) has the Llama's settings in
`transformer_layer_config`, and the head's beside it.

Taps are counted here by what enters a layer: 0 is the embeddings, 2 what the second layer puts out.
`eagle_aux_hidden_state_layer_ids` at the top counts so, too. In `eagle_config` some count what
leaves a layer, which is one less; their first is 1, as others' never is. Where neither is there,
taps are the authors': 2, half of the target's layers, and all but three.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import json_object
from common.errors import ModelError
from common.model.assistant.checkpoint import KINDS
from common.model.rotary import Rotary, RotarySettings

FILE = "config.json"

_TAPS = "eagle_aux_hidden_state_layer_ids"
_ROTARY = ("rope_theta", "rope_scaling", "rope_parameters")
_THETA = 10000.0
"""Base of rotary embeddings where none is named, as in any Llama."""

_OTHER_NORMS = ("norm_before_fc", "fc_norm", "norm_output", "return_hidden_post_norm")
"""Settings of heads that norm elsewhere, too; some trainers have them in `eagle_config`."""


@dataclass(frozen=True, kw_only=True)
class EagleConfig:
    """Of a head; what its tensors are checked against."""

    file: Path
    """Where it was read."""
    taps: tuple[int, ...]
    """See `EagleWeights`."""
    hidden: int
    """d."""
    inner: int
    """Of the feed-forward part."""
    heads: int
    """Of the queries."""
    kv_heads: int
    """Of keys and values."""
    head_size: int
    """Numbers of each; even."""
    guesses: int
    """W."""
    epsilon: float
    """Of norms."""
    norm_before_residual: bool
    """See `EagleWeights`."""
    rope: Mapping[str, Any]
    """Settings of rotary embeddings, as they are."""
    base: object
    """Of the target's output matrix, see `common.model.base_samples`; None where nothing is."""

    def rotary(self) -> Rotary:
        """Of the head's positions; takes as much memory as `head_size` says.

        Raises:
            ModelError: Of a kind that is not known, or odd.
        """
        try:
            return Rotary.configured(self.rope, self.head_size)
        except ValueError as error:
            problem = f"{' or '.join(self.rope)}: {error}"
            raise ModelError(f"{self.file}: {problem}") from error


def read(directory: Path, *, hidden_size: int, vocab_size: int, layers: int) -> EagleConfig:
    """Reads a head's configuration.

    Args:
        directory: Where it is.
        hidden_size: Of the target.
        vocab_size: Of the target.
        layers: Of the target.

    Raises:
        ModelError: Missing, corrupt, of another kind of head or made for another target.
    """
    file = directory / FILE
    top = json_object.read(file)
    if top.get("model_type") in KINDS:
        raise ModelError(f"{file}: model_type: an assistant, which is no EAGLE head")
    nested = top.get("transformer_layer_config")
    layer = _Settings(file, top if nested is None else nested)
    head = _Settings(file, top)
    head.insist("speculators_model_type", "eagle3")
    if nested is not None:  # the authors' code does not look at it: tensors tell
        layer.insist("num_hidden_layers", 1)
    layer.insist("hidden_act", "silu")
    layer.insist("vocab_size", vocab_size)
    layer.insist("partial_rotary_factor", 1)
    layer.insist_first("layer_types", "full_attention")
    head.insist("target_hidden_size", hidden_size)
    for settings in (head, layer, head.inside("eagle_config")):
        for field in _OTHER_NORMS:
            settings.refuse(field)
    hidden, heads = layer.count("hidden_size"), layer.count("num_attention_heads")
    kv_heads = layer.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise ModelError(f"{file}: num_key_value_heads: {kv_heads}, but must divide {heads}")
    head_size = layer.count("head_dim", hidden // heads)
    if head_size % 2:
        raise ModelError(f"{file}: head_dim: {head_size}, but must be even")
    guesses = head.count("draft_vocab_size", vocab_size)
    if guesses > vocab_size:
        raise ModelError(f"{file}: draft_vocab_size: {guesses}, of a vocabulary of {vocab_size}")
    return EagleConfig(
        file=file,
        taps=_taps(head, layers),
        hidden=hidden,
        inner=layer.count("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        guesses=guesses,
        epsilon=layer.epsilon("rms_norm_eps", 1e-6),
        norm_before_residual=head.flag("norm_before_residual"),
        rope={"rope_theta": _THETA} | {k: v for k in _ROTARY if (v := layer.get(k)) is not None},
        base=head.inside("paceline").get("base"),
    )


def taps_as_written(taps: tuple[int, ...]) -> dict[str, Any]:
    """Fields that say which layers a head reads, to all who read such files."""
    leaving = taps[0] == 2  # so all others read them right, whichever way they count
    return {_TAPS: taps, "eagle_config": {_TAPS: [tap - leaving for tap in taps]}}


def rope_as_written(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that say how positions turn heads, in the form that all read.

    Args:
        config: With settings as `Rotary.configured` reads them.
    """
    kind, base, others = RotarySettings.of(config)
    scaling = None if kind == "default" else {"rope_type": kind, **others}
    return {"rope_theta": base, "rope_scaling": scaling}


class _Settings:
    """An object in the file; what is null counts as not there."""

    def __init__(self, file: Path, held: object, name: str = "transformer_layer_config") -> None:
        if not isinstance(held, dict):
            raise ModelError(f"{file}: {name}: must be an object")
        self.file, self._held = file, held

    def get(self, field: str) -> Any:
        return self._held.get(field)

    def inside(self, field: str) -> _Settings:
        held = self.get(field)
        return _Settings(self.file, {} if held is None else held, field)

    def insist(self, field: str, wanted: str | int) -> None:
        """Refuses all but one value."""
        self._insist(field, self.get(field), wanted)

    def insist_first(self, field: str, wanted: str) -> None:
        """Refuses lists, by layer, that begin with another value: a head has one layer."""
        value = self.get(field)
        self._insist(field, value[0] if value and isinstance(value, list) else value, wanted)

    def refuse(self, field: str) -> None:
        """Refuses heads that have something."""
        if self.get(field) not in (None, False):
            raise ModelError(f"{self.file}: {field}: heads with such norms are not supported")

    def flag(self, field: str) -> bool:
        value = self.get(field)
        if value is not None and not isinstance(value, bool):
            raise ModelError(f"{self.file}: {field}: {json.dumps(value)}, but must be a boolean")
        return bool(value)

    def count(self, field: str, default: int | None = None) -> int:
        value = self.get(field)
        value = default if value is None else value
        if type(value) is not int or value < 1:
            problem = f"{json.dumps(value)}, but must be a whole number from 1"
            raise ModelError(f"{self.file}: {field}: {problem}")
        return value

    def epsilon(self, field: str, default: float) -> float:
        value = self.get(field)
        value = default if value is None else value
        if type(value) not in (int, float) or not 0 <= value < 1:
            problem = f"{json.dumps(value)}, but must be a number from 0 to 1"
            raise ModelError(f"{self.file}: {field}: {problem}")
        return float(value)

    def _insist(self, field: str, value: object, wanted: object) -> None:
        if value is not None and (isinstance(value, bool) or value != wanted):
            problem = f"{json.dumps(value)}, but only {json.dumps(wanted)} is supported here"
            raise ModelError(f"{self.file}: {field}: {problem}")


def _taps(head: _Settings, layers: int) -> tuple[int, ...]:
    """The layers whose inputs a head reads; see above."""
    name, found, less = _TAPS, head.get(_TAPS), 0
    if not found:
        nested = head.inside("eagle_config")
        if nested.get("use_aux_hidden_state") is False:
            problem = "heads that read one layer alone are not EAGLE-3"
            raise ModelError(f"{head.file}: eagle_config: use_aux_hidden_state: {problem}")
        name, found = f"eagle_config: {_TAPS}", nested.get(_TAPS)
        less = int(isinstance(found, list) and found[:1] == [1])
    if not found:
        name, found, less = f"{_TAPS}, by default", [2, layers // 2, layers - 3], 0
    if not isinstance(found, list) or any(type(tap) is not int for tap in found):
        raise ModelError(f"{head.file}: {name}: must be a list of layers")
    taps = tuple(tap + less for tap in found)
    if not all(0 <= tap < layers for tap in taps) or sorted(set(taps)) != list(taps):
        problem = f"layers {found}, but they must rise, and the target has {layers}"
        raise ModelError(f"{head.file}: {name}: {problem}")
    return taps
