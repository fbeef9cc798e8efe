"""Lookahead: what feeds the pools, what comes out of them, and when the window stays out."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ConfigError
from common.lookahead_sizes import LookaheadSizes
from common.model.tree import TokenTree
from common.store.pool_config import PoolConfig
from common.store.pools import MemoryPools
from tests.unit.verifier.methods.scripted_target import Target, follow, rounds, sequence
from verifier.cost import StepCost
from verifier.gates.crowd import Crowd
from verifier.gates.gate import Gate
from verifier.gates.gated import GatedProposer
from verifier.methods.lookahead import LookaheadProposer
from verifier.pool.config import LookaheadConfig
from verifier.pool.shared import SharedPools
from verifier.pool.sizes import PUBLISHED, SMALLEST, choose
from verifier.proposer import Outcome
from verifier.sequence import Sequence
from verifier.totals import Totals

FREE = StepCost()
CPU = StepCost(((1, 3.2), (8, 4.3), (64, 14.0)))
WINDOW = LookaheadConfig(window_columns=3, ngram_tokens=4, guess_ngrams=6)


class Timed:
    """A target that takes a second for each row."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.now = 0.0

    def __call__(self, ids: Seq[int]) -> int:
        self.now += 1.0
        return self._target(ids)


def _still() -> float:
    """A clock of a machine on which nothing takes any time."""
    return 0.0


def _chain(ids: Seq[int]) -> int:
    """A target that looks at its last token only, and goes round 211 of them."""
    return (7 * ids[-1] + 5) % 211


def test_a_full_match_brings_its_bonus_too() -> None:
    """An n-gram of N tokens whose first is committed: N - 1 are accepted, and one more comes."""
    proposer = LookaheadProposer(LookaheadConfig(window_columns=1, ngram_tokens=4), CPU)
    text = [10, 11, 12, 13, 14, 15, 16, 17] * 6
    one = sequence(text[:16], 32)
    done = list(rounds(proposer, follow(text), one))
    whole = [each for each in done if each.accepted and not each.tree.children(each.accepted[-1])]
    assert one.ids == text
    assert whole
    assert all(len(each.ids) in (len(each.accepted), len(each.accepted) + 1) for each in whole)
    assert max(len(each.ids) for each in whole) > 3


def test_the_window_teaches_what_the_text_has_not_shown() -> None:
    """Nothing repeats, so every token won comes from the window or from wrong guesses."""
    proposer = LookaheadProposer(WINDOW, FREE, clock=_still)
    one = sequence([1, 2, 3], 150)
    done = list(rounds(proposer, _chain, one))
    assert one.ids[3] == _chain([3])
    assert all(_chain(one.ids[:end]) == one.ids[end] for end in range(3, len(one.ids)))
    assert len(set(one.ids[2:])) == len(one.ids[2:])
    assert len(done) < 0.9 * 150
    assert proposer.windows > 0


def test_guesses_share_their_beginnings() -> None:
    proposer = LookaheadProposer(WINDOW, FREE, clock=_still)
    prompt = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 6, 1]
    one = sequence(prompt, 8)
    proposer.open(one)
    tree = TokenTree(1)
    proposer.propose(one, tree, 64)
    assert tree.child(0, 2) is not None
    assert len(tree.children(0)) == len({tree.ids[node] for node in tree.children(0)})


def test_probes_are_not_counted_as_drafted() -> None:
    proposer = LookaheadProposer(WINDOW, FREE, clock=_still)
    one = sequence([1, 2, 3], 8, draft_tokens=1)
    proposer.open(one)
    tree = TokenTree(3)
    proposer.propose(one, tree, 64)
    assert len(tree) > 2
    assert tree.draft_tokens <= 1


def test_the_window_stays_out_where_the_pools_answer() -> None:
    proposer = LookaheadProposer(WINDOW, FREE, clock=_still)
    text = list(range(20)) * 20
    one = sequence(text[:40], 360)
    done = list(rounds(proposer, follow(text), one))
    assert proposer.windows < 0.2 * len(done)
    assert sum(each.tree.draft_tokens > 0 for each in done) > 0.8 * len(done)


def test_a_window_keeps_its_size_through_rounds_that_others_draft_for() -> None:
    proposer = LookaheadProposer(WINDOW, FREE, clock=_still)
    one = sequence([1, 2, 3], 200)
    sizes = []
    for number, each in enumerate(rounds(proposer, _chain, one)):
        sizes.append(len(each.tree) - 1 - each.tree.draft_tokens)
        if number == 20:
            for _ in range(100):
                tree = TokenTree(one.ids[-1])
                proposer.propose(one, tree, 0)
                assert len(tree) == 1
    assert max(sizes[22:26]) == max(sizes[:20]) > 0


def test_a_window_that_brings_nothing_rests() -> None:
    draw = random.Random(0)
    noise = [draw.randrange(10**6) for _ in range(1000)]
    target = Timed(follow(noise))
    proposer = LookaheadProposer(WINDOW, CPU, clock=lambda: target.now)
    one = sequence(noise[:10], 900)
    done = list(rounds(proposer, target, one))
    assert 0 < proposer.windows < 0.4 * len(done)


def test_rounds_that_leave_it_off_say_nothing_of_the_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Gate, "drafting", lambda gate, sequences, now: False)
    proposer = LookaheadProposer(WINDOW, CPU)
    gated = GatedProposer(proposer, Crowd(Totals()), CPU)
    assert len(list(rounds(gated, _chain, sequence([1, 2, 3], 50)))) == 50
    assert proposer._duty._rounds == 0


@given(
    width=st.integers(1, 4),
    ngram=st.integers(2, 5),
    guesses=st.integers(1, 5),
    vocab=st.integers(1, 5),
    budget=st.integers(0, 20),
    lose_every=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_any_text_comes_out_whatever_the_sizes(
    width: int, ngram: int, guesses: int, vocab: int, budget: int, lose_every: int, seed: int
) -> None:
    draw = random.Random(seed)
    text = [draw.randrange(vocab) for _ in range(60)]
    asked = LookaheadSizes(window=width, ngram=ngram, guesses=guesses)
    proposer = LookaheadProposer(LookaheadConfig(), FREE, shared=MemoryPools(PoolConfig()))
    one = sequence(text[:5], 40, lookahead=asked)

    for _ in rounds(proposer, follow(text), one, budget, lose_every=lose_every):
        pass
    assert one.ids == text[:45]
    assert not proposer._states


class Recorded:
    """Shared pools that write down what they are given, by tenant."""

    ngram_tokens = 3

    def __init__(self) -> None:
        self.added: dict[str, list[tuple[int, ...]]] = {}

    def of(self, tenant: str) -> RecordedPool:
        return RecordedPool(self.added.setdefault(tenant, []))


class RecordedPool:
    def __init__(self, added: list[tuple[int, ...]]) -> None:
        self._added = added

    def table(self, first: int) -> None:
        return None

    def add(self, ids: Seq[int]) -> None:
        tokens = Recorded.ngram_tokens
        self._added += [tuple(ids[end - tokens : end]) for end in range(tokens, len(ids) + 1)]

    def expect(self, tokens: Iterable[int]) -> None:
        pass


class Seldom(LookaheadProposer):
    """Takes part in one round of a few, and does not hear of the others."""

    every, at = 1, 0

    def propose(self, sequence: Sequence, tree: TokenTree, budget: int) -> None:
        """See `Proposer.propose`."""
        self.at += 1
        if self.at % self.every == 0:
            super().propose(sequence, tree, budget)

    def observe(self, sequence: Sequence, outcome: Outcome) -> None:
        """See `Proposer.observe`."""
        if self.at % self.every == 0 or sequence.finished:
            super().observe(sequence, outcome)


@pytest.mark.parametrize("every", [1, 2, 5])
def test_only_committed_text_is_shared_each_ngram_once_and_with_its_tenant(every: int) -> None:
    shared = Recorded()
    proposer = Seldom(WINDOW, FREE, shared=shared)
    proposer.every = every
    one = sequence([1, 2, 3, 4], 60, cache_salt=b"\xab")
    list(rounds(proposer, _chain, one))
    output = [tuple(one.ids[end - 3 : end]) for end in range(5, len(one.ids) + 1)]
    assert Counter(shared.added["ab"]) == Counter(output)
    assert list(shared.added) == ["ab"]


def _passes(shared: SharedPools, text: list[int]) -> int:
    proposer = LookaheadProposer(
        LookaheadConfig(window_columns=1, ngram_tokens=3), CPU, shared=shared
    )
    one = sequence(text[:4], len(text) - 4)
    done = list(rounds(proposer, follow(text), one))
    assert one.ids == text
    return len(done)


def test_what_one_sequence_shares_helps_the_next() -> None:
    draw = random.Random(3)
    text = [draw.randrange(5000) for _ in range(120)]
    pools = MemoryPools(PoolConfig())
    first = _passes(pools, text)
    assert first > 110
    assert _passes(pools, text) < 0.5 * first
    assert _passes(MemoryPools(PoolConfig()), text) == first


def test_sizes_are_the_published_ones_where_rows_are_cheap() -> None:
    for parameters, expected in (
        (7e9, PUBLISHED[0][1]),
        (13e9, PUBLISHED[1][1]),
        (7e10, PUBLISHED[2][1]),
    ):
        assert choose(LookaheadConfig(), FREE, parameters) == expected
    assert choose(LookaheadConfig(), CPU, 14e6) == SMALLEST
    narrow = choose(LookaheadConfig(), StepCost(((1, 1.0), (64, 1.5))), 7e9)
    assert SMALLEST.window < narrow.window < 15
    assert narrow.ngram == 5
    own = choose(LookaheadConfig(window_columns=9, ngram_tokens=3, guess_ngrams=2), CPU, 7e9)
    assert (own.window, own.ngram, own.guesses) == (9, 3, 2)


def test_a_request_has_its_own_sizes_and_leaves_the_others_open() -> None:
    config = LookaheadConfig(window_columns=9, ngram_tokens=3, guess_ngrams=2)
    asked = LookaheadSizes(window=4, guesses=5)
    chosen = choose(config, CPU, 7e9, asked=asked)
    assert (chosen.window, chosen.ngram, chosen.guesses) == (4, 3, 5)
    asked = LookaheadSizes(ngram=4)
    assert choose(LookaheadConfig(), FREE, 7e9, asked=asked) == replace(PUBLISHED[0][1], ngram=4)
    assert choose(LookaheadConfig(), CPU, 7e9, asked=asked) == replace(SMALLEST, ngram=4)


def test_a_window_that_no_step_has_room_for_is_narrowed() -> None:
    asked = LookaheadSizes(window=64, ngram=8)
    chosen = choose(LookaheadConfig(), FREE, 7e9, asked=asked, most_rows=255)
    assert chosen.window < 64
    assert chosen.window_nodes <= 255 < replace(chosen, window=chosen.window + 1).window_nodes
    assert choose(LookaheadConfig(), FREE, 7e9, asked=asked, most_rows=0).window == 1


def test_beside_others_the_window_is_narrower() -> None:
    """Its rows hold everybody up, so what they may cost falls with the batch."""
    cost = StepCost(((1, 1.0), (64, 1.1)))
    alone = choose(LookaheadConfig(), cost, 7e9)
    cost.observe(rows=8, sequences=8, tokens=8, seconds=cost.step_s(8))
    crowded = choose(LookaheadConfig(), cost, 7e9)
    assert alone == PUBLISHED[0][1]
    assert crowded.window < alone.window


def test_the_window_follows_the_load_while_a_text_is_made() -> None:
    cost = StepCost(((1, 1.0), (64, 1.1)))
    proposer = LookaheadProposer(LookaheadConfig(), cost, parameters=7e9)
    one = sequence([1, 2, 3], 100)
    steps = []
    for number, each in enumerate(rounds(proposer, _chain, one)):
        steps.append(len(each.tree) - 1 - each.tree.draft_tokens)
        if number == 40:
            cost.observe(rows=30, sequences=30, tokens=30, seconds=cost.step_s(30))
    assert one.ids[3:] == [_chain([token]) for token in one.ids[2:-1]]
    assert max(steps[:30]) > 40
    assert max(steps[60:], default=0) < 20


@pytest.mark.parametrize("seeded", [True, False])
def test_the_prompt_seeds_the_pool_where_it_should(seeded: bool) -> None:
    config = LookaheadConfig(window_columns=1, ngram_tokens=2, seed_from_prompt=seeded)
    proposer = LookaheadProposer(config, FREE, clock=_still)
    one = sequence([8, 9, 7, 8], 4)
    proposer.open(one)
    tree = TokenTree(8)
    proposer.propose(one, tree, 64)
    assert (tree.child(0, 9) is not None) == seeded


@pytest.mark.parametrize("sizes", [{"ngram_tokens": 1}, {"window_columns": -1}])
def test_sizes_that_make_no_sense(sizes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"lookahead.{next(iter(sizes))}"):
        LookaheadConfig(**sizes)
