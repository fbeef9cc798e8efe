"""Files of EAGLE-3 heads: every layout, ours and back, and files that must be refused."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from common.errors import ModelError
from common.model.eagle import checkpoint as eagle_checkpoint
from common.model.eagle.weights import EagleWeights
from common.model.rotary import Rotary
from tests.unit.common.model.eagle.small_heads import (
    GUESSES,
    HEADS,
    INNER,
    KV_HEADS,
    LAYERS,
    LM_HEAD,
    ROTARIES,
    SIZE,
    TARGET,
    VOCAB,
    by_key,
    check_same,
    head,
    load,
    normal,
    published,
    save,
    write,
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("head")


@pytest.mark.parametrize("size", [TARGET, 24])
@pytest.mark.parametrize("some", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_ours_comes_back_to_the_bit(size: int, some: bool, bias: bool, tmp_path: Path) -> None:
    weights = head(size=size, some=some, bias=bias)
    saved = replace(weights, norm_before_residual=bias)
    save(tmp_path / "new" / "head", saved)
    config = json.loads((tmp_path / "new" / "head" / "config.json").read_text())
    assert ("target_hidden_size" in config) == (size != TARGET)
    check_same(load(tmp_path / "new" / "head", lm_head=LM_HEAD), saved)
    wide = replace(saved, fc=saved.fc.double(), norm=saved.norm.float())
    save(tmp_path / "wide", wide)
    check_same(load(tmp_path / "wide"), saved)
    kinds = {key: t.dtype for key, t in load_file(tmp_path / "wide" / "model.safetensors").items()}
    ids = {"d2t": torch.int64, "t2d": torch.bool} if some else {}
    assert {key: kind for key, kind in kinds.items() if kind is not torch.bfloat16} == ids


@pytest.mark.parametrize("rotary", ROTARIES)
def test_ours_turns_heads_as_the_target_does(rotary: str, tmp_path: Path) -> None:
    weights = head(rotary=ROTARIES[rotary])
    save(tmp_path, weights, rotary)
    check_same(load(tmp_path), weights)
    assert "rope_parameters" not in json.loads((tmp_path / "config.json").read_text())


@given(st.sets(st.integers(0, LAYERS - 1), min_size=1))
def test_taps_come_back_whichever_they_are(shared: Path, taps: set[int]) -> None:
    weights = head(taps=tuple(sorted(taps)))
    save(shared, weights)
    check_same(load(shared), weights)
    assert eagle_checkpoint.holds(shared, weights, lm_head=LM_HEAD)
    config = json.loads((shared / "config.json").read_text())
    if min(taps) == 1:  # the one case that only the field at the top can say
        return
    del config["eagle_aux_hidden_state_layer_ids"]
    (shared / "config.json").write_text(json.dumps(config))
    check_same(load(shared), weights)


def test_what_shares_memory_is_saved(tmp_path: Path) -> None:
    weights = head(some=False)
    tied = replace(weights, embeddings=weights.lm_head)
    save(tmp_path, tied)
    check_same(load(tmp_path), tied)


@pytest.mark.parametrize("layer", ["midlayer.", "layers.0."])
@pytest.mark.parametrize("pickled", [True, False])
@pytest.mark.parametrize("some", [True, False])
def test_the_authors_files_are_read(layer: str, pickled: bool, some: bool, tmp_path: Path) -> None:
    weights = head(some=some)
    tensors = by_key(weights, layer)
    write(tmp_path, published(weights) | {"num_hidden_layers": 40}, tensors)  # they do not look
    if pickled:
        (tmp_path / "model.safetensors").unlink()
        torch.save(tensors, tmp_path / "pytorch_model.bin")
    check_same(load(tmp_path), weights)


def test_what_they_leave_out_is_as_in_any_llama(tmp_path: Path) -> None:
    size = HEADS * SIZE
    weights = replace(
        head(size=size, some=False, rotary={"rope_theta": 1e4}),
        k=normal(size, 2 * size, seed=16),
        v=normal(size, 2 * size, seed=17),
        epsilon=1e-6,
    )
    config = {"hidden_size": size, "intermediate_size": INNER, "num_attention_heads": HEADS}
    write(tmp_path, config, by_key(weights))
    check_same(load(tmp_path), weights)


@pytest.mark.parametrize("count", [GUESSES, VOCAB])
def test_tokens_may_be_in_any_order(count: int, tmp_path: Path) -> None:
    """As by how frequent they are; of all of them some ids are less than their places."""
    weights = head(some=count == GUESSES)
    ids = torch.arange(VOCAB) if weights.ids is None else weights.ids
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1))
    mixed = replace(weights, ids=ids[order], lm_head=weights.lm_head[order])
    write(tmp_path, published(weights), by_key(mixed))
    check_same(load(tmp_path), weights)


@pytest.mark.parametrize("own", [True, False])
def test_files_of_speculators_are_read(own: bool, tmp_path: Path) -> None:
    weights = replace(head(taps=(1, 5)), norm_before_residual=True)
    weights = replace(weights, embeddings=normal(VOCAB, TARGET, seed=15) if own else None)
    whole = {"layer_types": ["full_attention"] * LAYERS, "partial_rotary_factor": 1.0}
    layer = published(weights) | whole
    config = {
        "speculators_model_type": "eagle3",
        "draft_vocab_size": layer.pop("draft_vocab_size"),
        "norm_before_residual": True,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "target_hidden_size": TARGET if own else None,
        "eagle_aux_hidden_state_layer_ids": [1, 5],
        "transformer_layer_config": layer,
    }
    tensors = by_key(weights, "layers.0.")
    tensors["verifier_lm_head.weight"] = LM_HEAD
    tensors["verifier_norm.weight"] = normal(TARGET)
    write(tmp_path, config, tensors)
    check_same(load(tmp_path), weights)


def test_transformers_reads_our_configuration(tmp_path: Path) -> None:
    from transformers import LlamaConfig

    save(tmp_path, head(size=24, rotary=ROTARIES["new, llama3"]), "new, llama3")
    config = LlamaConfig.from_pretrained(tmp_path)
    assert (config.hidden_size, config.head_dim, config.num_key_value_heads) == (24, SIZE, KV_HEADS)
    assert (config.vocab_size, config.draft_vocab_size) == (VOCAB, GUESSES)
    assert config.max_position_embeddings == 256
    theirs = Rotary.configured(config.to_dict(), SIZE).frequencies
    assert torch.equal(theirs, Rotary.configured(ROTARIES["llama3"], SIZE).frequencies)


def test_the_same_head_is_known(tmp_path: Path) -> None:
    weights = head()

    def there(head: EagleWeights, lm_head: Tensor = LM_HEAD) -> bool:
        return eagle_checkpoint.holds(tmp_path, head, lm_head=lm_head)

    assert not there(weights)
    save(tmp_path, weights)
    assert there(weights)
    assert there(replace(weights, fc=weights.fc.float()))
    assert not there(weights, normal(VOCAB, TARGET, seed=98))
    assert not there(weights, LM_HEAD[1:])
    assert weights.ids is not None
    others: list[dict[str, Any]] = [
        {"down": weights.down + 1},
        {"taps": (2, 6, 10)},
        {"taps": (2, 6, 8)},
        {"ids": None, "lm_head": LM_HEAD},
        {"ids": torch.arange(GUESSES)},
        {"fc_bias": weights.norm},
        {"epsilon": 1e-6},
        {"norm_before_residual": True},
        {"rotary": Rotary.configured({"rope_theta": 1e4}, SIZE)},
    ]
    for other in others:
        assert not there(replace(weights, **other)), other


def test_a_target_of_the_same_size_is_told_by_its_weights(tmp_path: Path) -> None:
    weights = head()
    save(tmp_path, weights)
    load(tmp_path, lm_head=LM_HEAD.half())
    other = normal(VOCAB, TARGET, seed=98)
    with pytest.raises(ModelError, match=r"config\.json: paceline: base: .* for another model"):
        load(tmp_path, lm_head=other)
    load(tmp_path)
    write(tmp_path, published(weights), by_key(weights))
    load(tmp_path, lm_head=other)  # others' heads know none


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"midlayer.self_attn.o_proj.weight": None}, r"midlayer\.self_attn\.o_proj\.weight: miss"),
        ({"norm.weight": None}, r"norm\.weight: missing"),
        ({"fc.weight": None}, r"fc\.weight: missing"),
        ({"fc.weight": torch.zeros(32)}, r"fc\.weight: shape \(32,\)"),
        ({"fc.weight": torch.zeros(32, 99)}, r"fc\.weight: reads 99 numbers, but .* 32 have 96"),
        ({"fc.bias": torch.zeros(33)}, r"fc\.bias: shape \(33,\)"),
        ({"midlayer.mlp.up_proj.weight": torch.zeros(2, 2)}, r"up_proj\.weight: shape \(2, 2\)"),
        ({"norm.weight": torch.zeros(32).long()}, r"norm\.weight: torch\.int64"),
        ({"embed_tokens.weight": torch.zeros(9, 32)}, r"embed_tokens\.weight: shape \(9, 32\)"),
        ({"midlayer.self_attn.q_proj.bias": torch.zeros(24)}, "q_proj.bias: does not belong"),
        (
            {"layers.1.hidden_norm.weight": torch.zeros(32)},
            r"layers\.1\..*: heads of several layers",
        ),
        ({"additional_layers.0.o": torch.zeros(32)}, r"additional_layers\.0\.o: heads of several"),
        ({"odd": torch.zeros(1)}, "odd: does not belong"),
        ({"t2d": torch.zeros(47).bool()}, r"t2d: shape \(47,\), but this model needs \(48,\)"),
        ({"d2t": None}, "d2t: missing, but the head has 10 of 48 tokens"),
        ({"d2t": torch.zeros(10)}, "d2t: torch.float32 of shape"),
        ({"d2t": torch.zeros(10, 1).long()}, r"d2t: torch\.int64 of shape \(10, 1\)"),
        ({"d2t": torch.full((10,), 39)}, "d2t: ids must differ, and be of the target's 48"),
        ({"d2t": torch.full((10,), -1)}, "d2t: ids must differ"),
        ({"d2t": torch.tensor([1, 0] * 5)}, "d2t: ids must differ"),
        ({"d2t": torch.full((10,), 2**63 - 1)}, "d2t: ids must differ"),
        ({"d2t": torch.full((10,), -(2**63))}, "d2t: ids must differ"),
    ],
)
def test_a_wrong_tensor_is_refused_by_key(
    changed: dict[str, Tensor | None], problem: str, tmp_path: Path
) -> None:
    weights = head()
    tensors = {
        key: value for key, value in (by_key(weights) | changed).items() if value is not None
    }
    write(tmp_path, published(weights), tensors)
    with pytest.raises(ModelError, match=rf"model\.safetensors: .*{problem}"):
        load(tmp_path)


def test_a_narrower_head_needs_embeddings_of_its_own(tmp_path: Path) -> None:
    weights = head(size=24)
    tensors = by_key(weights)
    write(tmp_path, published(weights), tensors)
    check_same(load(tmp_path), weights)
    del tensors["embed_tokens.weight"]
    write(tmp_path, published(weights), tensors)
    with pytest.raises(ModelError, match=r"embed_tokens\.weight: missing"):
        load(tmp_path)


@pytest.mark.parametrize("bias", [True, False])
def test_heads_of_the_first_two_kinds_are_told(bias: bool, tmp_path: Path) -> None:
    weights = head(some=False)
    tensors = by_key(weights, "layers.0.")
    for key in ("hidden_norm", "input_layernorm"):
        del tensors[f"layers.0.{key}.weight"]
    del tensors["norm.weight"], tensors["lm_head.weight"]
    tensors["fc.weight"] = torch.zeros(TARGET, 2 * TARGET)
    if bias:
        tensors["fc.bias"] = torch.zeros(TARGET)
    write(tmp_path, published(weights), tensors)
    with pytest.raises(ModelError, match="EAGLE-1 or EAGLE-2 head; only EAGLE-3 is supported"):
        load(tmp_path)


@given(st.floats(0, 1, exclude_max=True))
def test_a_file_cut_short_is_refused_by_name(shared: Path, length: float) -> None:
    save(shared, head())
    file = shared / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * length)])
    with pytest.raises(ModelError, match=r"model\.safetensors: cannot be read"):
        load(shared)


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    (tmp_path / "config.json").write_text(json.dumps(published(head())))
    with (tmp_path / "pytorch_model.bin").open("wb") as file:
        pickle.dump({"fc.weight": Trap()}, file, protocol=2)
    with pytest.raises(ModelError, match=r"pytorch_model\.bin: refused: holds more than tensors"):
        load(tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="missing: no such directory"):
        load(tmp_path / "missing")
    with pytest.raises(ModelError, match=r"config\.json: cannot be read: No such file"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(published(head())))
    with pytest.raises(ModelError, match=r"holds no model\.safetensors and no pytorch_model\.bin"):
        load(tmp_path)
