"""Configurations of EAGLE-3 heads: how each form counts, and what must be refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ModelError
from tests.unit.common.model.eagle.small_heads import (
    GUESSES,
    LLAMA3,
    LM_HEAD,
    TAPS,
    YARN,
    by_key,
    head,
    load,
    published,
    save,
    write,
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("head")


@pytest.mark.parametrize(
    ("said", "taps"),
    [
        ({}, (2, 6, 9)),
        ({"eagle_aux_hidden_state_layer_ids": [1, 5, 8]}, (1, 5, 8)),
        ({"eagle_aux_hidden_state_layer_ids": None}, (2, 6, 9)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5, 8]}}, (2, 6, 9)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 6, 9]}}, (2, 6, 9)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 11]}}, (0, 1, 11)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": []}}, (2, 6, 9)),
        ({"eagle_config": None}, (2, 6, 9)),
    ],
)
def test_taps_are_counted_as_each_form_counts(
    said: dict[str, Any], taps: tuple[int, ...], tmp_path: Path
) -> None:
    weights = head()
    write(tmp_path, published(weights) | said, by_key(weights))
    assert load(tmp_path).taps == taps


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"transformer_layer_config": {"num_hidden_layers": 2}}, "num_hidden_layers: 2, but only"),
        ({"hidden_act": "gelu"}, 'hidden_act: "gelu", but only "silu" is'),
        ({"vocab_size": 47}, "vocab_size: 47, but only 48 is"),
        ({"target_hidden_size": 33}, "target_hidden_size: 33, but only 32 is"),
        ({"speculators_model_type": "eagle"}, 'speculators_model_type: "eagle", but only "eagle3"'),
        ({"norm_before_fc": True}, "norm_before_fc: heads with such norms are not supported"),
        ({"fc_norm": True}, "fc_norm: heads with such norms are not supported"),
        ({"norm_output": True}, "norm_output: heads with such norms are not supported"),
        ({"eagle_config": {"norm_before_fc": True}}, "norm_before_fc: heads with such norms"),
        ({"eagle_config": {"return_hidden_post_norm": True}}, "return_hidden_post_norm: heads"),
        ({"layer_types": ["sliding_attention"]}, 'layer_types: "sliding_.*only "full_attention"'),
        ({"layer_types": 3}, 'layer_types: 3, but only "full_attention" is'),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor: 0\.5, but only 1 is"),
        ({"norm_before_residual": "yes"}, 'norm_before_residual: "yes", but must be a boolean'),
        ({"hidden_size": "32"}, 'hidden_size: "32", but must be a whole number from 1'),
        ({"hidden_size": None}, "hidden_size: null, but must be a whole number"),
        ({"hidden_size": 40}, r"fc\.weight: shape \(32, 96\), but this model needs \(40, 96\)"),
        ({"intermediate_size": 0}, "intermediate_size: 0, but must be"),
        ({"num_attention_heads": 1.5}, r"num_attention_heads: 1\.5, but must be"),
        ({"num_attention_heads": 8}, r"q_proj\.weight: shape \(24, 64\).*needs \(48, 64\)"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: 3, but must divide 4"),
        ({"head_dim": 7}, "head_dim: 7, but must be even"),
        ({"head_dim": True}, "head_dim: true, but must be"),
        ({"draft_vocab_size": 11}, "d2t: .* must be 11 whole numbers"),
        ({"draft_vocab_size": 49}, "draft_vocab_size: 49, of a vocabulary of 48"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps: -1e-05, but must be a number from 0 to 1"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps: NaN, but must be"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps: 1000"),
        ({"vocab_size": True}, "vocab_size: true, but only 48 is"),
        ({"rope_theta": -2}, "rope_theta: out of range"),
        ({"rope_theta": "much"}, "rope_theta: cannot be used: TypeError"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            r"rope_scaling: rotary embeddings of type yarn with \['factor'\]: not supported",
        ),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters: .* of type yarn with"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "out of range"),
        ({"rope_scaling": {**YARN, "attention_factor": float("inf")}}, "out of range"),
        ({"rope_scaling": {**YARN, "beta_fast": -1}}, "math domain error"),
        ({"rope_scaling": "linear"}, "rope_scaling: must be an object"),
        ({"rope_scaling": {"rope_type": ["linear"]}}, r"of type \['linear'\] with"),
        ({TAPS: [2, 6, 12]}, r"\[2, 6, 12\], but they must rise, and the target has 12"),
        ({TAPS: [2, 9, 6]}, r"layers \[2, 9, 6\], but they must rise"),
        ({TAPS: [2, 2, 6]}, r"layers \[2, 2, 6\], but they must rise"),
        ({TAPS: [-1, 2, 6]}, r"layers \[-1, 2, 6\]"),
        ({TAPS: [2, 6.0, 9]}, f"{TAPS}: must be a list of layers"),
        ({TAPS: 2}, f"{TAPS}: must be a list of layers"),
        ({TAPS: [2, 9]}, r"fc\.weight: reads 96 numbers, but layers \[2, 9\] .* have 64"),
        ({"eagle_config": {TAPS: [1, 5, 11]}}, rf"eagle_config: {TAPS}: layers \[1"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state: heads that"),
        ({"eagle_config": [2]}, "eagle_config: must be an object"),
        ({"transformer_layer_config": 3}, "transformer_layer_config: must be an object"),
        ({"paceline": 3}, "paceline: must be an object"),
    ],
)
def test_a_wrong_configuration_is_refused_by_field(
    said: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    weights = head()
    write(tmp_path, published(weights) | said, by_key(weights))
    with pytest.raises(ModelError, match=problem) as refused:
        load(tmp_path)
    assert str(tmp_path) in str(refused.value)


@pytest.mark.parametrize("layers", [1, 2, 4, 5, 6])
def test_taps_by_default_are_refused_where_a_target_has_too_few_layers(
    layers: int, tmp_path: Path
) -> None:
    weights = head()
    write(tmp_path, published(weights), by_key(weights))
    problem = rf"{TAPS}, by default: layers \[2, {layers // 2}, {layers - 3}\].* has {layers}"
    with pytest.raises(ModelError, match=problem):
        load(tmp_path, layers)


NAMES = st.sampled_from([*LLAMA3, "type", "rope_theta", TAPS, "base", "odd"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner),
    max_leaves=6,
)
SETTINGS = [*published(head()), TAPS, "eagle_config", "transformer_layer_config"]
SETTINGS += ["rope_scaling", "rope_parameters", "norm_before_residual", "fc_norm", "paceline"]
SETTINGS += ["layer_types", "partial_rotary_factor"]


@given(said=st.dictionaries(st.sampled_from(SETTINGS), JSON, max_size=3), inside=st.booleans())
def test_odd_settings_are_refused_or_read(shared: Path, said: dict[str, Any], inside: bool) -> None:
    weights = head()
    config = published(weights) | said
    if inside:
        config = {"transformer_layer_config": config, "draft_vocab_size": GUESSES}
    write(shared, config, by_key(weights))
    try:
        found = load(shared, lm_head=LM_HEAD)
    except ModelError:
        return
    assert torch.isfinite(found.rotary.frequencies).all()
    assert 0 <= found.epsilon < 1


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[1]", b"null", b'"\xff"', b"[" * 100_000, b'{"hidden_size": 1' + b"0" * 9999],
)
def test_a_damaged_configuration_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    save(tmp_path, head())
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"config\.json: (cannot be read|must hold a JSON object)"):
        load(tmp_path)
