"""How much of a text its target would have accepted, without running the server.

Along the target's own greedy continuation a guess is right where it equals the text, so one pass
over the text tells what every round would have accepted, with drafts that never come late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from common.model.medusa.weights import Tree
from training.encode import Ids
from training.heads import Heads
from training.written import Written

Found = Sequence[Sequence[Sequence[int]]]
"""One domain's ranks: by text, position and head, or depth."""

_NO_TOKEN = -1
"""Stands for a token behind the end of the text, and for its rank."""

_BATCH = 16
"""Texts that are read at once."""


@dataclass(frozen=True)
class Chain:
    """A draft model's guesses along texts.

    Attributes:
        agreement: Part of the tokens that the draft's likeliest one equals.
        tokens: Mean tokens of a target pass, by length of the drafts.
    """

    agreement: float
    tokens: dict[int, float]


@torch.inference_mode()
def chain(draft: Any, texts: Sequence[Written], lengths: Iterable[int]) -> Chain:
    """Measures chains drafted by a `transformers` model."""
    right: list[list[bool]] = []
    for batch, text in padded(texts, draft.device):
        guesses = draft(input_ids=batch).logits.argmax(-1).tolist()
        for row, one in zip(guesses, text, strict=True):
            places = range(one.prompt_tokens, len(one.ids))
            right.append([row[place - 1] == one.ids[place] for place in places])
    total = sum(map(len, right))
    return Chain(
        agreement=sum(map(sum, right)) / total,
        tokens={k: total / sum(_chain_passes(hits, k) for hits in right) for k in lengths},
    )


@torch.inference_mode()
def ranks(
    target: Any, heads: Heads, texts: Sequence[Written], lm_head: Tensor
) -> list[list[list[int]]]:
    """At which rank each head has the token that comes.

    Args:
        target: A `transformers` causal language model.
        heads: Over its states, in float32.
        texts: Its greedy texts.
        lm_head: Its output matrix. # [V, d]

    Returns:
        For each text and each position from the prompt's last on, each head's rank of the token
        that stands 2 + i places on; -1 where the text has ended.
    """
    found: list[list[list[int]]] = []
    for batch, part in padded(texts, target.device):
        states = target.base_model(input_ids=batch).last_hidden_state
        spans = [slice(text.prompt_tokens - 1, len(text.ids) - 1) for text in part]
        rows = torch.cat([state[span] for state, span in zip(states, spans, strict=True)])
        chosen = torch.cat([torch.tensor(text.ids[text.prompt_tokens :]) for text in part])
        chosen = chosen.to(target.device)
        wanted = torch.cat([coming(text, len(heads)) for text in part]).to(target.device)
        with torch.autocast(rows.device.type, enabled=False):  # tokens tie in fewer bits
            columns = [
                rank(heads.logits(head, rows.float(), chosen, lm_head), wanted[:, head])
                for head in range(len(heads))
            ]
        lengths = [span.stop - span.start for span in spans]
        found += [table.tolist() for table in torch.stack(columns, dim=1).split(lengths)]
    return found


def coming(text: Written, heads: int) -> Tensor:
    """What comes two places on and further, for each position from the prompt's last. # [P, K]"""
    end = len(text.ids)
    places = range(text.prompt_tokens + 1, end + 1)
    ids = [*text.ids, *[_NO_TOKEN] * (heads + 1)]
    return torch.tensor([ids[place : place + heads] for place in places])


def rank(logits: Tensor, tokens: Tensor) -> Tensor:
    """How many tokens come before the given ones, of equal ones the lowest. # [P, V], [P] -> [P]

    All of them where logits are NaN, as those of weights that training has ruined: none is right.
    """
    ids = torch.arange(logits.shape[1], device=logits.device)
    value = logits.gather(1, tokens.clamp(min=0)[:, None])
    behind = (logits < value) | ((logits == value) & (ids >= tokens[:, None]))
    return (~behind).sum(1).where(tokens != _NO_TOKEN, _NO_TOKEN)


def tree_tokens(found: Found, tree: Tree) -> float:
    """Mean tokens of a target pass with a tree of guesses.

    Args:
        found: As `ranks` returns them.
        tree: Paths of ranks.
    """
    known = set(tree)
    total = passes = 0
    for text in found:
        place = 0
        while place < len(text):
            step = 1 + _accepted(text[place], known)
            total += min(step, len(text) - place)
            passes += 1
            place += step
    return total / passes


def _accepted(row: Sequence[int], tree: set[tuple[int, ...]]) -> int:
    """How far a position's ranks go down a tree."""
    depth = 0
    while depth < len(row) and tuple(row[: depth + 1]) in tree:
        depth += 1
    return depth


def _chain_passes(hits: Sequence[bool], length: int) -> int:
    """Target passes that a text takes with drafts of `length`."""
    passes = place = 0
    while place < len(hits):
        most = min(length, len(hits) - place)
        accepted = next((i for i in range(most) if not hits[place + i]), most)
        place += accepted + 1
        passes += 1
    return passes


def padded(
    texts: Sequence[Written], device: torch.device, *, more: int = 0
) -> Iterable[tuple[Tensor, Sequence[Written]]]:
    """Batches of texts, padded behind their ends, the longest by so many more. # ids [B, T]"""
    for first in range(0, len(texts), _BATCH):
        part = texts[first : first + _BATCH]
        width = max(len(text.ids) for text in part) + more
        rows: list[Ids] = [[*text.ids, *[0] * (width - len(text.ids))] for text in part]
        yield torch.tensor(rows, device=device), part


def figures(found: Mapping[str, Found], tree: Tree, each: str) -> dict[str, float]:
    """What chooses a checkpoint, and what is told of it.

    Args:
        found: Ranks, by domain.
        tree: Paths of ranks.
        each: What a rank of a position is of: "head", "depth".

    Returns:
        "score", the domains' mean of tokens per pass with the tree; "tokens <domain>"; "top-1
        <each> <i>", the share of right guesses, domains weighing the same.
    """
    tokens = {name: tree_tokens(ranks, tree) for name, ranks in found.items()}
    right = torch.stack([top_1(ranks) for ranks in found.values()]).mean(0)
    return {
        "score": sum(tokens.values()) / len(tokens),
        **{f"tokens {name}": value for name, value in tokens.items()},
        **{f"top-1 {each} {i}": value for i, value in enumerate(right.tolist())},
    }


def top_1(found: Found) -> Tensor:
    """Each head's share of right guesses. # [K]"""
    return accuracies(found, 1)[:, 0]


def accuracies(found: Found, most_ranks: int) -> Tensor:
    """Each head's share of tokens at each rank. # [K, most_ranks]"""
    table = torch.tensor([row for text in found for row in text])  # [positions, K]
    shares = []
    for column in table.unbind(1):
        there = column[column != _NO_TOKEN]
        counts = F.one_hot(there.clamp(max=most_ranks), most_ranks + 1).sum(0)
        shares.append(counts[:most_ranks] / max(1, len(there)))
    return torch.stack(shares)
