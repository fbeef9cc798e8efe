"""Files of Medusa heads: the published layouts (see `common.model.medusa.published`), and ours.

Ours is a directory of two files. `medusa.safetensors` holds

    block.weight  [K, L, d, d]      W of each head's blocks
    block.bias    [K, L, d]         b
    lm.weight     [K, V, d]         output matrices; absent where the base model's serves all
    token.weight  [K, d, d]         U of each head's first block, which sees the chosen token, too;
                                    absent where heads see the state alone, as the published do

and `medusa.json` an object with

    format        "paceline-medusa"
    version       1
    num_heads     K
    num_layers    L
    hidden_size   d
    vocab_size    V
    base          of the base model's output matrix, see `common.model.base_samples`
    tree          list of paths of ranks, `[[0], [1], [0, 0]]`: which guesses of which heads to
                  check; or null
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from common import json_object
from common.errors import ModelError
from common.model import base_samples, tensor_file
from common.model.medusa import published
from common.model.medusa.weights import FACTS_FILE, HeadWeights, Tree
from common.model.tensors_by_key import check, read

WEIGHTS_FILE = "medusa.safetensors"
FORMAT = "paceline-medusa"
VERSION = 1


def load(path: Path, *, lm_head: Tensor) -> HeadWeights:
    """Reads heads in any of these layouts.

    Args:
        path: A directory, or the file in it that holds the weights.
        lm_head: The base model's output matrix. # [V, d]

    Raises:
        ModelError: Missing, corrupt or made for another model; names file and key.
    """
    if path.is_dir() and (path / FACTS_FILE).is_file():
        return _load_ours(path, lm_head)
    if path.name == WEIGHTS_FILE:
        return _load_ours(path.parent, lm_head)
    return published.load(path, lm_head)


def save(path: Path, weights: HeadWeights, *, lm_head: Tensor) -> None:
    """Writes heads in our layout, in bfloat16.

    Args:
        path: A directory; made where it is missing.
        weights: What to write.
        lm_head: The base model's output matrix. # [V, d]
    """
    path.mkdir(parents=True, exist_ok=True)
    tensor_file.save(_narrowed(weights), path / WEIGHTS_FILE)
    facts = {
        "format": FORMAT,
        "version": VERSION,
        "num_heads": weights.num_heads,
        "num_layers": weights.num_layers,
        "hidden_size": lm_head.shape[1],
        "vocab_size": lm_head.shape[0],
        "base": base_samples.of(lm_head),
        "tree": weights.tree,
    }
    write_facts(path, facts)


def holds(path: Path, weights: HeadWeights, *, lm_head: Tensor) -> bool:
    """Whether a directory holds these heads as `save` writes them, with whatever tree.

    Args:
        path: The directory.
        weights: The heads.
        lm_head: The base model's output matrix. # [V, d]
    """
    try:
        there = _narrowed(_load_ours(path, lm_head))
    except ModelError:
        return False
    wanted = _narrowed(weights)
    return there.keys() == wanted.keys() and all(
        torch.equal(there[key], value) for key, value in wanted.items()
    )


def read_facts(path: Path) -> dict[str, Any]:
    """Returns the object in a directory's `medusa.json`.

    Raises:
        ModelError: There is none, or it is not of this format and version.
    """
    file = path / FACTS_FILE
    facts = json_object.read(file)
    if facts.get("format") != FORMAT:
        raise ModelError(f'{file}: format: must be "{FORMAT}"')
    if facts.get("version") != VERSION:
        raise ModelError(f"{file}: version: {facts.get('version')}, but only {VERSION} is known")
    return facts


def write_facts(path: Path, facts: Mapping[str, Any]) -> None:
    """Writes `medusa.json`, a line a field: whole, or not at all."""
    fields = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in facts.items()]
    text = "{\n" + ",\n".join(fields) + "\n}\n"
    new = path / f"{FACTS_FILE}.new"
    new.write_text(text, encoding="utf-8")
    new.replace(path / FACTS_FILE)


def checked_tree(source: str, tree: object, num_heads: int) -> Tree:
    """Turns a list of paths of ranks into a tree.

    Args:
        source: What to name in an error.
        tree: The list, as JSON gives it.
        num_heads: Longest a path may be.

    Raises:
        ModelError: Not such a list, or a path whose parent is not in it.
    """
    if not isinstance(tree, list) or not all(_is_path(path, num_heads) for path in tree):
        raise ModelError(f"{source}: must be a list of paths of 1 to {num_heads} ranks from 0")
    paths = [tuple(path) for path in tree]
    known = set(paths)
    if len(known) != len(paths):
        raise ModelError(f"{source}: a path stands there twice")
    for path in paths:
        if len(path) > 1 and path[:-1] not in known:
            raise ModelError(f"{source}: {list(path)} is there, but {list(path[:-1])} is not")
    return tuple(sorted(paths, key=lambda path: (len(path), path)))


def _is_path(path: object, num_heads: int) -> bool:
    return (
        isinstance(path, list)
        and 1 <= len(path) <= num_heads
        and all(type(rank) is int and rank >= 0 for rank in path)
    )


def _narrowed(weights: HeadWeights) -> dict[str, Tensor]:
    """Tensors of our layout by key, bfloat16."""
    tensors = {"block.weight": weights.block, "block.bias": weights.bias}
    if weights.lm is not None:
        tensors["lm.weight"] = weights.lm
    if weights.token is not None:
        tensors["token.weight"] = weights.token
    return {key: t.detach().to("cpu", torch.bfloat16).contiguous() for key, t in tensors.items()}


def _load_ours(path: Path, lm_head: Tensor) -> HeadWeights:
    facts, file = read_facts(path), path / FACTS_FILE
    for field, wanted in (("vocab_size", lm_head.shape[0]), ("hidden_size", lm_head.shape[1])):
        if facts.get(field) != wanted:
            raise ModelError(f"{file}: {field}: {facts.get(field)}, but the model's is {wanted}")
    if not base_samples.match(facts.get("base"), lm_head):
        raise ModelError(f"{file}: base: these heads were trained for another model")
    heads, layers = (_count(file, facts, field) for field in ("num_heads", "num_layers"))
    vocab, hidden = lm_head.shape
    shapes: dict[str, tuple[int, ...]] = {
        "block.weight": (heads, layers, hidden, hidden),
        "block.bias": (heads, layers, hidden),
    }
    tensors = read(path / WEIGHTS_FILE, None)
    if "lm.weight" in tensors:
        shapes["lm.weight"] = (heads, vocab, hidden)
    if "token.weight" in tensors:
        shapes["token.weight"] = (heads, hidden, hidden)
    check(path / WEIGHTS_FILE, tensors, shapes)
    tree = facts.get("tree")
    return HeadWeights(
        block=tensors["block.weight"],
        bias=tensors["block.bias"],
        lm=tensors.get("lm.weight"),
        token=tensors.get("token.weight"),
        tree=None if tree is None else checked_tree(f"{file}: tree", tree, heads),
    )


def _count(file: Path, facts: Mapping[str, Any], field: str) -> int:
    value = facts.get(field)
    if type(value) is not int or value < 1:
        raise ModelError(f"{file}: {field}: {value}, but must be a whole number from 1")
    return value
