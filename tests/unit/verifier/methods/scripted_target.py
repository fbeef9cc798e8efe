"""A target that is a function of the text, and a decoding loop around one proposer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from common.model.blocks import BlockManager
from common.model.kv_cache import KvLease
from common.model.output import Computed
from common.model.tree import TokenTree
from verifier.acceptance.coupled import walk
from verifier.proposer import Outcome, Proposer
from verifier.sequence import Request, Sequence

NO_OUTPUT = Computed(logits=torch.empty(1, 0), states=torch.empty(1, 0))

Target = Callable[[Seq[int]], int]
"""The next token after a text."""


def follow(text: Seq[int]) -> Target:
    """A target with one text in mind, and zeros after it or off it."""

    def target(ids: Seq[int]) -> int:
        known = len(ids) < len(text) and list(ids) == list(text[: len(ids)])
        return text[len(ids)] if known else 0

    return target


@dataclass(frozen=True)
class Round:
    """One pass."""

    tree: TokenTree
    accepted: Seq[int]
    ids: Seq[int]


def sequence(prompt: Seq[int], tokens: int, **options: object) -> Sequence:
    """A sequence outside any engine."""
    request = Request(
        request_id="r",
        prompt_ids=tuple(prompt),
        max_tokens=tokens,
        **options,  # type: ignore[arg-type]
    )
    lease = KvLease(BlockManager(1, 16))
    return Sequence(request, lambda event: None, lease, 1)


def rounds(
    proposer: Proposer, target: Target, one: Sequence, budget: int = 64, *, lose_every: int = 0
) -> Iterator[Round]:
    """Decodes to the end.

    Args:
        proposer: Drafts.
        target: Chooses.
        one: Whose text.
        budget: Most nodes beside the root.
        lose_every: The cache has no room for every so manieth tree.
    """
    proposer.open(one)
    number = 0
    while one.finished is None:
        tree = TokenTree(one.ids[-1])
        if number:  # the prefill's end has no draft
            proposer.propose(one, tree, budget)
        assert len(tree) <= 1 + budget
        if lose_every and number % lose_every == 0:
            tree = TokenTree(one.ids[-1])
        number += 1
        yield _check(proposer, target, one, tree)
    proposer.close(one)


def _check(proposer: Proposer, target: Target, one: Sequence, tree: TokenTree) -> Round:
    paths = [[tree.ids[each] for each in tree.path(node)] for node in range(len(tree))]
    choices = [target([*one.ids, *path]) for path in paths]
    accepted, last = walk(tree, choices)
    taken = one.commit([*(tree.ids[node] for node in accepted), last])
    ids, kept = one.ids[-taken:], accepted[:taken]
    outcome = Outcome(tree=tree, choices=choices, accepted=kept, ids=ids, output=NO_OUTPUT)
    proposer.observe(one, outcome)
    return Round(tree, kept, ids)
