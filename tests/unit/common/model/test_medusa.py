"""Medusa heads: their arithmetic, every layout of their files, and files that must be refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from common.errors import ModelError
from common.model.medusa import checkpoint as medusa_checkpoint
from common.model.medusa.checkpoint import WEIGHTS_FILE, checked_tree
from common.model.medusa.compiled import NativeMedusa
from common.model.medusa.heads import MedusaHeads
from common.model.medusa.weights import FACTS_FILE, HeadWeights

HIDDEN, VOCAB, HEADS = 16, 40, 3


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


LM_HEAD = _normal(VOCAB, HIDDEN, seed=1)
CHOSEN = [7, 0, 39, 7, 12]


def _weights(*, layers: int = 1, own: bool = True, sees_token: bool = False) -> HeadWeights:
    return HeadWeights(
        block=_normal(HEADS, layers, HIDDEN, HIDDEN, seed=2).bfloat16(),
        bias=_normal(HEADS, layers, HIDDEN, seed=3).bfloat16(),
        lm=_normal(HEADS, VOCAB, HIDDEN, seed=4).bfloat16() if own else None,
        token=_normal(HEADS, HIDDEN, HIDDEN, seed=5).bfloat16() if sees_token else None,
    )


def _published(weights: HeadWeights, prefix: str = "") -> dict[str, Tensor]:
    """The weights by the keys that published files have."""
    tensors = {}
    for head in range(weights.num_heads):
        for layer in range(weights.num_layers):
            key = f"{prefix}{head}.{layer}.linear"
            tensors[f"{key}.weight"] = weights.block[head, layer].clone()
            tensors[f"{key}.bias"] = weights.bias[head, layer].clone()
        if weights.lm is not None:
            tensors[f"{prefix}{head}.{weights.num_layers}.weight"] = weights.lm[head].clone()
    return tensors


def _v01(folder: Path, tensors: dict[str, Tensor]) -> None:
    (folder / "config.json").write_text('{"medusa_num_heads": 2, "medusa_num_layers": 1}')
    torch.save(tensors, folder / "medusa_lm_head.pt")


def _shared(folder: Path, tensors: dict[str, Tensor]) -> None:
    save_file(tensors, folder / "medusa_lm_head.safetensors")


def _medusa2(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Heads spread over two files of a whole model."""
    named = {f"medusa_head.{key}": value for key, value in tensors.items()}
    names = sorted(named)
    base = {"model.embed_tokens.weight": LM_HEAD.clone(), "lm_head.weight": LM_HEAD.clone()}
    first = {name: named[name] for name in names[::2]}
    rest = {name: named[name] for name in names[1::2]}
    save_file({**base, **first}, folder / "model-00001-of-00002.safetensors")
    save_file(rest, folder / "model-00002-of-00002.safetensors")


LAYOUTS: dict[str, tuple[Callable[[Path, dict[str, Tensor]], None], bool]] = {
    "v0.1": (_v01, True),
    "medusa-2": (_medusa2, True),
    "shared": (_shared, False),
}


def _load(folder: Path, lm_head: Tensor = LM_HEAD) -> MedusaHeads:
    return MedusaHeads.load(
        folder,
        lm_head=lm_head,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def _plainly(weights: HeadWeights, hidden: Tensor, chosen: list[int]) -> Tensor:
    """The paper's formula, and ours for the chosen token, head by head. # [K, N, V]"""
    logits = []
    rows = LM_HEAD[chosen]
    vectors = rows / rows.square().mean(dim=1, keepdim=True).sqrt()
    for head in range(weights.num_heads):
        x = hidden
        for layer in range(weights.num_layers):
            inner = x @ weights.block[head, layer].float().T + weights.bias[head, layer].float()
            if layer == 0 and weights.token is not None:
                inner += vectors @ weights.token[head].float().T
            x = x + F.silu(inner)
        matrix = LM_HEAD if weights.lm is None else weights.lm[head].float()
        logits.append(x @ matrix.T)
    return torch.stack(logits)


@pytest.mark.skipif(not NativeMedusa.work(torch.bfloat16), reason="no compiled code here")
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("sees_token", [True, False])
def test_compiled_heads_are_the_formula(layers: int, own: bool, sees_token: bool) -> None:
    """As near as weights of 8 bits are."""
    weights = _weights(layers=layers, own=own, sees_token=sees_token)
    heads, threaded = (
        MedusaHeads(
            weights,
            lm_head=LM_HEAD.bfloat16(),
            dtype=torch.bfloat16,
            device=torch.device("cpu"),
            threads=threads,
        )
        for threads in (1, 3)
    )
    hidden = _normal(5, HIDDEN, seed=9)
    found, expected = heads.logits(hidden.bfloat16(), CHOSEN), _plainly(weights, hidden, CHOSEN)
    assert found.dtype == torch.float32
    assert torch.equal(heads.logits(hidden, CHOSEN), found), "of a model in float32, too"
    off = (found - expected).square().mean(-1).sqrt() / expected.std(-1)
    assert float(off.max()) < 0.1
    alone = torch.cat(
        [threaded.logits(hidden[i : i + 1].bfloat16(), CHOSEN[i : i + 1]) for i in range(5)], dim=1
    )
    assert torch.equal(alone, found)
    if sees_token:
        with pytest.raises(IndexError):
            heads.logits(hidden[:1].bfloat16(), [VOCAB])


def _check_top(heads: MedusaHeads, weights: HeadWeights) -> None:
    hidden = _normal(5, HIDDEN, seed=9)
    ids, probabilities = heads.top(heads.logits(hidden, CHOSEN), 4)
    assert ids.shape == probabilities.shape == (HEADS, 5, 4)
    assert ids.dtype == torch.int64
    chances = _plainly(weights, hidden, CHOSEN).softmax(-1)
    near = {"rtol": 1e-4, "atol": 1e-6}  # which of several that have next to none comes is open
    torch.testing.assert_close(probabilities, chances.topk(4, dim=-1).values, **near)
    torch.testing.assert_close(probabilities, chances.gather(-1, ids), **near)
    assert all(len(set(row)) == 4 for row in ids.flatten(0, 1).tolist())


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("sees_token", [True, False])
def test_heads_compute_the_formula(layers: int, own: bool, sees_token: bool) -> None:
    weights = _weights(layers=layers, own=own, sees_token=sees_token)
    heads = MedusaHeads(weights, lm_head=LM_HEAD, dtype=torch.float32, device=torch.device("cpu"))
    _check_top(heads, weights)


def test_heads_in_bfloat16_stay_near_the_formula() -> None:
    weights = _weights(sees_token=True)
    heads = MedusaHeads(weights, lm_head=LM_HEAD, dtype=torch.bfloat16, device=torch.device("cpu"))
    hidden = _normal(3, HIDDEN, seed=9).bfloat16()
    ids, probabilities = heads.top(heads.logits(hidden, CHOSEN[:3]), VOCAB)
    wanted = _plainly(weights, hidden.float(), CHOSEN[:3]).softmax(-1)
    torch.testing.assert_close(probabilities, wanted.gather(-1, ids), rtol=0.2, atol=0.05)
    assert torch.all(probabilities[..., :-1] >= probabilities[..., 1:])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("layers", [1, 2])
def test_published_layouts_load(layout: str, layers: int, tmp_path: Path) -> None:
    write, own = LAYOUTS[layout]
    weights = _weights(layers=layers, own=own)
    write(tmp_path, _published(weights))
    heads = _load(tmp_path)
    assert heads.num_heads == HEADS
    assert heads.tree is None
    _check_top(heads, weights)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("key", "change"),
    [
        pytest.param("1.0.linear.weight", None, id="missing"),
        pytest.param("2.0.linear.bias", None, id="missing-last"),
        pytest.param("0.0.linear.weight", _normal(HIDDEN + 1, HIDDEN + 1), id="hidden"),
        pytest.param("0.0.attention.weight", _normal(2, 2), id="extra"),
        pytest.param("0.0.linear.weight", torch.zeros(HIDDEN, HIDDEN).long(), id="integers"),
    ],
)
def test_a_wrong_published_file_is_refused_by_key(
    layout: str, key: str, change: Tensor | None, tmp_path: Path
) -> None:
    write, own = LAYOUTS[layout]
    tensors = _published(_weights(own=own))
    if change is None:
        del tensors[key]
    else:
        tensors[key] = change
    write(tmp_path, tensors)
    with pytest.raises(ModelError, match=key.replace(".", r"\.")) as raised:
        _load(tmp_path)
    assert str(tmp_path) in str(raised.value)


@pytest.mark.parametrize("layout", ["v0.1", "medusa-2"])
def test_heads_for_another_vocabulary_are_refused_by_key(layout: str, tmp_path: Path) -> None:
    LAYOUTS[layout][0](tmp_path, _published(_weights()))
    with pytest.raises(ModelError, match=r"0\.1\.weight: shape \(40, 16\).* \(41, 16\)"):
        _load(tmp_path, _normal(VOCAB + 1, HIDDEN))


def test_one_head_without_its_output_matrix_is_refused(tmp_path: Path) -> None:
    tensors = _published(_weights())
    del tensors["1.1.weight"]
    _v01(tmp_path, tensors)
    with pytest.raises(ModelError, match=r"1\.1\.weight: missing"):
        _load(tmp_path)


def test_a_model_without_heads_is_refused(tmp_path: Path) -> None:
    save_file({"lm_head.weight": LM_HEAD}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"no key starts with medusa_head\."):
        _load(tmp_path)


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    with (tmp_path / "medusa_lm_head.pt").open("wb") as file:
        pickle.dump({"0.0.linear.weight": Trap()}, file, protocol=2)
    with pytest.raises(ModelError, match=r"medusa_lm_head\.pt"):
        _load(tmp_path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("name", ["medusa_lm_head.pt", "medusa_lm_head.safetensors"])
def test_a_damaged_file_is_refused_by_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"not tensors")
    with pytest.raises(ModelError, match=name):
        _load(tmp_path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "empty"),
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            r"not a PyTorch file \(a Git LFS pointer",
        ),
        (b"<html>not found</html>", "not a PyTorch file"),
    ],
)
def test_what_was_saved_in_a_files_place_is_told(
    content: bytes, problem: str, tmp_path: Path
) -> None:
    (tmp_path / "medusa_lm_head.pt").write_bytes(content)
    with pytest.raises(ModelError, match=rf"medusa_lm_head\.pt: {problem}"):
        _load(tmp_path)


@pytest.mark.parametrize("kind", ["ours", "of a model"])
def test_a_file_that_cannot_be_opened_is_not_said_to_be_missing(kind: str, tmp_path: Path) -> None:
    if kind == "ours":
        medusa_checkpoint.save(tmp_path, _weights(), lm_head=LM_HEAD)
        file = tmp_path / WEIGHTS_FILE
        file.unlink()
    else:
        file = tmp_path / "model.safetensors"
    file.symlink_to(file)
    with pytest.raises(ModelError, match=rf"{file.name}: cannot be read: .*Too many levels"):
        _load(tmp_path)


def test_heads_are_as_readable_as_their_facts(tmp_path: Path) -> None:
    medusa_checkpoint.save(tmp_path, _weights(), lm_head=LM_HEAD)
    weights, facts = (tmp_path / name for name in (WEIGHTS_FILE, FACTS_FILE))
    assert weights.stat().st_mode == facts.stat().st_mode


def test_an_empty_folder_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no medusa\.json"):
        _load(tmp_path)
    with pytest.raises(ModelError, match="no such file"):
        _load(tmp_path / "missing")


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("sees_token", [True, False])
def test_our_layout_comes_back_as_it_was_saved(own: bool, sees_token: bool, tmp_path: Path) -> None:
    tree = ((0,), (1,), (0, 0), (0, 0, 2))
    weights = _weights(layers=2, own=own, sees_token=sees_token)
    saved = replace(weights, tree=tree)
    medusa_checkpoint.save(tmp_path / "heads", saved, lm_head=LM_HEAD)
    heads = _load(tmp_path / "heads")
    assert heads.tree == tree
    _check_top(heads, weights)
    _check_top(_load(tmp_path / "heads" / WEIGHTS_FILE), weights)


def test_the_same_heads_are_known_whatever_their_tree(tmp_path: Path) -> None:
    weights, other = _weights(), replace(_weights(), bias=_weights().bias + 1)
    assert not medusa_checkpoint.holds(tmp_path, weights, lm_head=LM_HEAD)
    medusa_checkpoint.save(tmp_path, replace(weights, tree=((0,),)), lm_head=LM_HEAD)
    assert medusa_checkpoint.holds(tmp_path, weights, lm_head=LM_HEAD)
    assert not medusa_checkpoint.holds(tmp_path, other, lm_head=LM_HEAD)
    assert not medusa_checkpoint.holds(tmp_path, replace(weights, lm=None), lm_head=LM_HEAD)


def test_our_layout_tells_a_model_of_the_same_size_by_its_weights(tmp_path: Path) -> None:
    medusa_checkpoint.save(tmp_path, _weights(), lm_head=LM_HEAD)
    _load(tmp_path, LM_HEAD.bfloat16())
    with pytest.raises(ModelError, match="base: these heads were trained for another model"):
        _load(tmp_path, _normal(VOCAB, HIDDEN, seed=7))


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("format", "other", "format"),
        ("version", 2, "version: 2"),
        ("hidden_size", 17, "hidden_size: 17, but the model's is 16"),
        ("vocab_size", 41, "vocab_size: 41, but the model's is 40"),
        ("num_heads", 2, r"block\.weight: shape \(3, 1, 16, 16\).*\(2, 1, 16, 16\)"),
        ("num_layers", "one", "num_layers: one"),
        ("base", None, "base"),
        ("tree", [[0, 0]], r"tree: \[0, 0\] is there, but \[0\] is not"),
        ("tree", [[0], [0]], "tree: a path stands there twice"),
        ("tree", [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]], "tree: must be a list of paths"),
        ("tree", [[-1]], "tree: must be a list of paths"),
        ("tree", [[True]], "tree: must be a list of paths"),
    ],
)
def test_wrong_facts_are_refused_by_field(
    field: str, value: object, problem: str, tmp_path: Path
) -> None:
    medusa_checkpoint.save(tmp_path, _weights(), lm_head=LM_HEAD)
    file = tmp_path / FACTS_FILE
    file.write_text(json.dumps({**json.loads(file.read_text()), field: value}))
    with pytest.raises(ModelError, match=problem):
        _load(tmp_path)


def test_a_missing_or_superfluous_tensor_of_ours_is_refused_by_key(tmp_path: Path) -> None:
    medusa_checkpoint.save(tmp_path, _weights(), lm_head=LM_HEAD)
    whole = load_file(tmp_path / WEIGHTS_FILE)
    save_file({**whole, "odd": torch.zeros(1)}, tmp_path / WEIGHTS_FILE)
    with pytest.raises(ModelError, match="odd: does not belong"):
        _load(tmp_path)
    del whole["block.bias"]
    save_file(whole, tmp_path / WEIGHTS_FILE)
    with pytest.raises(ModelError, match=r"block\.bias: missing"):
        _load(tmp_path)


def test_a_trees_paths_are_put_in_order_of_depth() -> None:
    assert checked_tree("tree", [[1], [0, 0], [0]], HEADS) == ((0,), (1,), (0, 0))
