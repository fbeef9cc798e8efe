"""The search for a tree, and what acceptance along a text is said to be."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from common.errors import InvalidArgument, ModelError
from common.model.medusa import checkpoint as medusa_checkpoint
from tests.unit.training.full_disk import full_after
from training import acceptance, choose_tree, tree
from training.acceptance import tree_tokens
from training.choose_tree import parsed
from training.encode import Encoder
from training.errors import RunError
from training.heads import Heads
from training.models import load_model
from training.tree import PathWorth, choices, grow, of_size
from training.written import Written

HEADS, RANKS = 2, 3


def _found(seed: int, positions: int = 300) -> list[list[list[int]]]:
    """Ranks of a domain: low ones are likelier, the second head is often right with the first."""
    chooser = random.Random(seed)
    rows = []
    for _ in range(positions):
        first = min(int(chooser.expovariate(0.9)), RANKS)
        rows.append([first, first if chooser.random() < 0.5 else chooser.randint(0, RANKS)])
    return [rows]


def _downward_closed(paths: tuple[tuple[int, ...], ...]) -> bool:
    return all(len(path) == 1 or path[:-1] in paths for path in paths)


@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_no_tree_of_the_same_size_is_worth_more(nodes: int) -> None:
    domains = [_found(0), _found(1)]
    worth = PathWorth(domains, RANKS)
    every = [path for n in (1, 2) for path in itertools.product(range(RANKS), repeat=n)]
    best = max(
        sum(map(worth, paths))
        for paths in itertools.combinations(every, nodes)
        if _downward_closed(paths)
    )
    found = of_size(PathWorth(domains, RANKS), nodes)
    assert len(found) == nodes
    assert _downward_closed(found)
    assert sum(map(worth, found)) == pytest.approx(best)


def test_paths_come_by_falling_probability_down_to_the_last() -> None:
    grown = list(grow(PathWorth([_found(0)], RANKS)))
    assert len(grown) == RANKS + RANKS**2
    assert len({path for path, _ in grown}) == len(grown)
    probabilities = [probability for _, probability in grown]
    assert probabilities == sorted(probabilities, reverse=True)


def test_domains_weigh_the_same_however_long_they_are() -> None:
    long, short = [[[0, 0]] * 1000], [[[1, 1]] * 50]
    worth = PathWorth([long, short], RANKS)
    assert worth((0,)) == pytest.approx(0.5)
    assert worth((1,)) == pytest.approx(0.5)


def test_the_size_follows_the_cost_of_rows() -> None:
    domains = [_found(0)]
    flat = choices(PathWorth(domains, RANKS), {1: 3.0, 13: 3.0}, 13)
    steep = choices(PathWorth(domains, RANKS), {1: 3.0, 2: 300.0, 13: 3000.0}, 13)
    assert [len(choice.tree) for choice in flat] == list(range(13))
    assert len(max(flat, key=lambda choice: choice.tokens_per_s).tree) == 12
    assert max(steep, key=lambda choice: choice.tokens_per_s).tree == ()


def test_no_tree_is_larger_than_asked_for_and_a_full_disk_leaves_it(
    target: Path, stories: Path, tmp_path: Path
) -> None:
    lm_head = load_model(target).get_output_embeddings().weight
    heads = Heads(lm_head, num_heads=HEADS, num_layers=1, own_lm=False)
    medusa_checkpoint.save(tmp_path, heads.weights(), lm_head=lm_head)

    def choose(most_rows: int) -> None:
        choose_tree.run(
            target=target,
            heads=tmp_path,
            files=[stories],
            step_ms={1: 1.0, 9: 1.0},
            most_rows=most_rows,
            prompts=4,
            device="cpu",
        )

    def nodes() -> int:
        return len(medusa_checkpoint.read_facts(tmp_path)["tree"])

    choose(most_rows=64)
    assert nodes() > 1
    choose(most_rows=2)
    assert nodes() == 1
    with full_after(10), pytest.raises(RunError, match="cannot be written: File too large"):
        choose(most_rows=64)
    assert nodes() == 1


def test_step_times_are_interpolated() -> None:
    found = choices(PathWorth([_found(0)], RANKS), parsed("2:3,4:5.0,12:9"), 12)
    assert [choice.step_ms for choice in found] == [3, 3, 4, 5, 5.5, 6, 6.5, 7, 7.5, 8, 8.5, 9]


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("4", "must be like"),
        ("4:x", "must be like"),
        ("0:3,4:5", "rows start"),
        ("1:nan,4:5", "rows start"),
        ("4:5", "two"),
    ],
)
def test_times_that_cannot_be_read_are_refused(table: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match=f"--step-ms: .*{why}"):
        parsed(table)
    assert parsed("") == {}


def test_tokens_with_a_tree_by_hand() -> None:
    # Positions 0, 1, 3, 6 are reached: the walks accept 0, 1, 2 and, at the end, no guess.
    rows = [[1, 0], [0, 1], [9, 9], [0, 0], [9, 9], [9, 9], [-1, -1]]
    assert tree_tokens([rows], ((0,), (0, 0))) == pytest.approx(7 / 4)
    assert tree_tokens([rows], ()) == 1


def test_chains_by_hand() -> None:
    hits = [True, True, False, True, True, True, True]
    passes = [acceptance._chain_passes(hits, length) for length in (1, 2, 3)]
    # K=1: 2+1+2+2; K=2: 3+3+1; K=3: 3+4.
    assert passes == [4, 3, 2]


def test_accuracies_leave_out_what_stands_behind_the_end() -> None:
    table = acceptance.accuracies([[[0, 1], [1, -1], [5, -1]]], 2)
    torch.testing.assert_close(table, torch.tensor([[1 / 3, 1 / 3], [0.0, 1.0]]))


def test_ranks_are_those_of_the_tokens_that_come(target: Path, encoder: Encoder) -> None:
    model = load_model(target, float32=True)
    lm_head = model.get_output_embeddings().weight
    heads = Heads(lm_head, num_heads=HEADS, num_layers=1, own_lm=False)
    texts = [Written([5, 9, 7, 30, 12, 44], 2), Written([8, 6, 31], 1)]
    found = acceptance.ranks(model, heads, texts, lm_head)
    # Fresh heads are the output layer itself, so they rank by the next token's logits.
    for text, rows in zip(texts, found, strict=True):
        logits = model(input_ids=torch.tensor([text.ids])).logits[0]
        assert len(rows) == len(text.ids) - text.prompt_tokens
        for place, row in enumerate(rows, start=text.prompt_tokens - 1):
            for head, rank in enumerate(row):
                coming = place + 2 + head
                if coming >= len(text.ids):
                    assert rank == -1
                else:
                    assert rank == (logits[place] > logits[place, text.ids[coming]]).sum()


def test_ranks_are_of_heads_that_saw_the_token_between(target: Path) -> None:
    model = load_model(target, float32=True)
    lm_head = model.get_output_embeddings().weight
    heads = Heads(lm_head, num_heads=HEADS, num_layers=1, own_lm=False, sees_token=True)
    for matrix in heads.tokens:
        torch.nn.init.eye_(matrix)
    ids = [5, 9, 7, 30, 12, 44]
    found = acceptance.ranks(model, heads, [Written(ids, 2)], lm_head)
    states = model.base_model(input_ids=torch.tensor([ids])).last_hidden_state[0]
    for place, row in enumerate(found[0], start=1):
        if place + 2 < len(ids):
            chosen = torch.tensor([ids[place + 1]])
            logits = heads.logits(0, states[place][None], chosen, lm_head)[0]
            assert row[0] == (logits > logits[ids[place + 2]]).sum()


def test_of_equal_logits_the_lowest_id_is_the_likelier() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0]] * 5)
    ranks = acceptance.rank(logits, torch.tensor([1, 2, 4, 3, -1]))
    assert ranks.tolist() == [0, 1, 2, 3, -1]


def test_logits_that_are_no_numbers_are_never_right() -> None:
    """What training ruined would score best otherwise."""
    logits = torch.tensor([[torch.nan] * 3, [1.0, torch.nan, 2.0], [1.0, torch.nan, 2.0]])
    assert acceptance.rank(logits, torch.tensor([0, 2, 1])).tolist() == [3, 1, 3]


@pytest.mark.parametrize("half", [True, False])
def test_ranks_are_by_float32_logits(half: bool, target: Path) -> None:
    """Also where a model computes in bfloat16, whose logits tie."""
    model = load_model(target)
    lm_head = model.get_output_embeddings().weight
    heads = Heads(lm_head, num_heads=1, num_layers=1, own_lm=False)
    seen: list[torch.dtype] = []
    inner = heads.logits

    def logits(*args: Any) -> torch.Tensor:
        found = inner(*args)
        seen.append(found.dtype)
        return found

    heads.logits = logits  # type: ignore[method-assign]
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        acceptance.ranks(model, heads, [Written([5, 9, 7, 30], 2)], lm_head)
    assert seen == [torch.float32]


def test_the_target_agrees_with_itself(target: Path) -> None:
    model = load_model(target)
    ids = [5, 9]
    for _ in range(12):
        ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    found = acceptance.chain(model, [Written(ids, 2)], [3])
    assert found.agreement == 1
    assert found.tokens == {3: 12 / 3}


def test_a_tree_of_no_nodes_is_left_where_no_head_is_right() -> None:
    never = [[[9, 9]] * 40]
    offered = tree.choices(PathWorth([never], RANKS), {1: 1.0, 5: 1.1}, 5)
    assert max(offered, key=lambda choice: choice.tokens_per_s).tree == ()


@pytest.mark.parametrize("held", [None, "[" * 100_000, "[1]"])
def test_heads_without_facts_are_named_once(held: str | None, tmp_path: Path) -> None:
    file = tmp_path / "medusa.json"
    file.mkdir() if held is None else file.write_text(held)
    with pytest.raises(ModelError) as caught:
        medusa_checkpoint.read_facts(tmp_path)
    assert str(caught.value).startswith(f"{file}: ")
    assert str(caught.value).count(str(file)) == 1
