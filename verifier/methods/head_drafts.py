"""A head's drafts, depth by depth, as far as another depth is worth what it takes.

Owns which guesses are gone on from, and when to stop; the arithmetic is the head's,
what of the guesses is checked the proposer's.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Generic, NamedTuple

from torch import Tensor

from common.model.adjust import adjust
from common.model.drafting_head import MOST_DEPTH, MOST_DRAFTED, DraftingHead, Going, Guessed, Known
from common.model.output import rows_of
from common.model.roll import Drawing
from common.model.row import Row
from common.model.sampling import rank
from verifier.cost import StepCost
from verifier.methods.trust import chances_of, draws
from verifier.sequence import Sequence

_RANKS = 4
"""Guesses taken of a row."""

_LEAST = 0.1
"""Joint chance of a guess to be gone on from."""

_LIKE = 0.8
"""How likely the next guess is taken to be before it is made."""

_TIMED = 8
"""Depths of which the fastest says what one takes: what is longer now and then is not the head."""


class Text(NamedTuple):
    """Whose draft it is."""

    sequence: Sequence
    """It."""
    factors: Seq[float]
    """What chances of guesses are multiplied by, by depth."""
    most: int
    """How many tokens may follow each other."""


class Guess(NamedTuple):
    """A token that may come."""

    parent: int
    """Number of the guess that it follows; -1: none."""
    token: int
    """It."""
    said: float
    """Its chance given the parent, as the head says."""
    joint: float
    """That of all of its path, as far as the head is trusted."""


class _Price(NamedTuple):
    """Tokens that another depth has to bring for each that there is, to bring more a second."""

    depth: float  # whatever its rows
    row: float  # and for each of them


class _Row(NamedTuple):
    """What the head runs at one depth."""

    text: int  # whose
    parent: int  # its row at the depth before
    number: int  # of the guess it goes on from; -1: none
    joint: float  # its chance


@dataclass
class _Step:
    """What a step comes to, of all texts that are drafted for."""

    began: float  # when the first of them was drafted behind
    expected: float  # tokens that come of it
    checked: int  # rows that it has, of each text the likeliest path


class _Fastest:
    """Seconds of what is repeated, at its fastest of late."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """As few as they can be until there are some."""
        self._lately: list[float] = []

    def add(self, seconds: float) -> None:
        """Takes one more."""
        self._lately.append(seconds)
        if len(self._lately) == _TIMED:
            self.seconds = min(self._lately)
            self._lately.clear()


class HeadDrafts(Generic[Known]):
    """What a head drafts, for several texts at once.

    Args:
        head: Guesses.
        cost: Of the engine's steps.
    """

    def __init__(self, head: DraftingHead[Known], cost: StepCost) -> None:
        self._head, self._cost = head, cost
        self._depth = defaultdict[tuple[bool, int], _Fastest](_Fastest)  # by how, and bits of rows
        self._priced: dict[int, tuple[object, Seq[_Price]]] = {}  # by texts: for what, and prices

    def draft(self, texts: Seq[Text], known: Seq[Known]) -> list[list[Guess]]:
        """Guesses what follows.

        Args:
            texts: At least one.
            known: What the head has to know of them.

        Returns:
            Guesses of each text, parents first.
        """
        if self._head.rolls:
            return self._rolled(texts, known)
        step = _Step(time.perf_counter(), float(len(texts)), len(texts))
        guesses: list[list[Guess]] = [[] for _ in texts]
        for group in self._head.groups(known):
            of = [texts[text] for text in group]
            drafted = self._drafted(of, [known[text] for text in group], step)
            for text, found in zip(group, drafted, strict=True):
                guesses[text] = found
        return guesses

    def _rolled(self, texts: Seq[Text], known: Seq[Known]) -> list[list[Guess]]:
        """Guesses by a head that goes on by itself."""
        factors = [text.factors for text in texts]
        drawn = any(draws(text.sequence) or _adjusts(text) for text in texts)
        depth_s = self._depth[True, len(texts).bit_length()]
        prices = self._prices(len(texts), depth_s.seconds)
        going = Going(
            _RANKS,
            factors,
            [text.most for text in texts],
            _LEAST,
            [each.depth for each in prices],
            [each.row for each in prices],
            [_drawing(text.sequence) for text in texts] if drawn else (),
        )
        started = time.perf_counter()
        levels = self._head.roll(known, going)
        # What is before the first is shared among all: who times long rolls alone believes for good
        # what a slow moment said.
        depth_s.add((time.perf_counter() - started) / len(levels))
        return [_line(levels, text, own) for text, own in enumerate(factors)]

    def _prices(self, texts: int, depth_s: float) -> Seq[_Price]:
        """Of another depth behind each, where all texts have gone on until then."""
        what = depth_s, self._cost.step_s(texts), self._cost.step_s(2 * texts)
        known, prices = self._priced.get(texts, (None, ()))
        if known != what:
            prices = [
                self._price((2 + depth) * texts, texts, (1 + depth) * depth_s, depth_s)
                for depth in range(MOST_DEPTH)
            ]
            self._priced[texts] = what, prices
        return prices

    def _price(self, checked: int, more: int, spent: float, depth_s: float) -> _Price:
        """What another depth has to bring.

        Args:
            checked: Rows of the step without it.
            more: Those that it may add.
            spent: Seconds until now.
            depth_s: What it takes itself.
        """
        step_s = self._cost.step_s(checked)
        row_s = (self._cost.step_s(checked + more) - step_s) / more
        least_s = _LIKE * (spent + step_s)
        return _Price(depth_s / least_s, row_s / least_s)

    def _drafted(self, texts: Seq[Text], known: Seq[Known], step: _Step) -> list[list[Guess]]:
        """Guesses of texts that are drafted behind together."""
        started = time.perf_counter()
        guesses: list[list[Guess]] = [[] for _ in texts]
        draft = self._head.draft(known)
        rows = [_Row(text, text, -1, 1.0) for text in range(len(texts))]
        plain = not any(draws(text.sequence) or _adjusts(text) for text in texts)
        logits, drafted = draft.logits, 0
        for depth in range(MOST_DEPTH):
            if plain:
                found = self._head.top(logits, _RANKS)
            else:
                found = self._likeliest([texts[row.text].sequence for row in rows], depth, logits)
            leaves = _grown(texts, rows, depth, found, guesses)
            now = time.perf_counter()
            if depth:  # what is before the first takes longer, and is taken anyway
                self._depth[False, len(rows).bit_length()].add(now - started)
            best = [max((leaf.joint for leaf in line), default=0.0) for line in leaves]
            step.expected += sum(best)
            step.checked += sum(map(bool, leaves))
            rows = self._followed(texts, leaves, depth + 1)
            drafted += len(rows)
            if not rows or drafted > MOST_DRAFTED:
                break
            if not self._pays(rows, step, now):
                break
            started = now
            tokens = [guesses[row.text][row.number].token for row in rows]
            logits = draft.further([row.parent for row in rows], tokens)
        return guesses

    def _likeliest(self, sequences: Seq[Sequence], depth: int, logits: Tensor) -> Guessed:
        """What rows guess, as they are drawn or adjusted. # [R, W]

        Of a path only what is committed counts as seen: what stands before a guess is another one.
        """
        head = self._head
        drawn = [row for row, each in enumerate(sequences) if draws(each)]
        others = [row for row, each in enumerate(sequences) if not draws(each)]
        rows = [Row(each.request.sampling, len(each.ids) + depth, each.seen) for each in sequences]
        ids: list[Seq[int]] = [()] * len(rows)
        chances: list[Seq[float]] = [()] * len(rows)
        if others:
            mine, some = [rows[row] for row in others], rows_of(logits, others)
            if any(row.params.adjusts for row in mine):
                some = head.narrow(adjust(head.spread(some), mine))
            for row, tokens, said in zip(others, *head.top(some, _RANKS), strict=True):
                ids[row], chances[row] = tokens, said
        if drawn:
            wide = head.spread(rows_of(logits, drawn))
            ranked = rank(wide, [rows[row] for row in drawn], _RANKS)
            for row, found in zip(drawn, ranked, strict=True):
                temperature = rows[row].params.temperature
                ids[row], chances[row] = found.ids, chances_of(found.behind, temperature)
        return ids, chances

    def _followed(self, texts: Seq[Text], leaves: Seq[Seq[_Row]], depth: int) -> list[_Row]:
        """What is gone on from at a depth, in the order of the rows it comes of."""
        chosen: list[_Row] = []
        for text, line in zip(texts, leaves, strict=True):
            if depth < text.most:
                likely = [leaf for leaf in line if leaf.joint >= _LEAST]
                likely.sort(key=lambda leaf: -leaf.joint)
                chosen += likely[: self._head.followed]
        chosen.sort(key=lambda leaf: leaf.parent)
        return chosen

    def _pays(self, rows: Seq[_Row], step: _Step, now: float) -> bool:
        """Whether another depth brings more tokens a second than there are now.

        Args:
            rows: What is gone on from.
            step: What it comes to without.
            now: Time.
        """
        best: dict[int, float] = {}
        for row in rows:
            best[row.text] = max(best.get(row.text, 0.0), row.joint)
        depth_s = self._depth[False, len(rows).bit_length()].seconds
        price = self._price(step.checked, len(best), now - step.began, depth_s)
        return sum(best.values()) > step.expected * (price.depth + len(best) * price.row)


def _adjusts(text: Text) -> bool:
    """Whether a text's logits are not taken as the head has them."""
    return text.sequence.request.sampling.adjusts


def _drawing(sequence: Sequence) -> Drawing:
    """How the token after a sequence is guessed; without noise where that does not decide it."""
    drawing = Row(sequence.request.sampling, len(sequence.ids), sequence.seen).drawing
    return drawing if draws(sequence) else drawing._replace(temperature=0.0)


def _line(levels: Seq[Guessed], text: int, factors: Seq[float]) -> list[Guess]:
    """Guesses of a text, the likeliest of which was gone on from at every depth."""
    guesses: list[Guess] = []
    parent, before = -1, 1.0
    for factor, (ids, chances) in zip(factors, levels, strict=False):
        known = [token for token in ids[text] if token >= 0]
        if not known:
            break
        for token, said in zip(known, chances[text], strict=False):
            guesses.append(Guess(parent, token, said, before * min(said * factor, 1.0)))
        parent = len(guesses) - len(known)
        before = guesses[parent].joint
    return guesses


def _grown(
    texts: Seq[Text],
    rows: Seq[_Row],
    depth: int,
    found: Guessed,
    guesses: list[list[Guess]],
) -> list[list[_Row]]:
    """Adds what rows guess; returns what may be gone on from, by text."""
    leaves: list[list[_Row]] = [[] for _ in texts]
    for place, (row, ids, chances) in enumerate(zip(rows, *found, strict=True)):
        text, parent, before = row.text, row.number, row.joint
        factor, known, line = texts[text].factors[depth], guesses[text], leaves[text]
        for token, said in zip(ids, chances, strict=True):
            joint = before * min(said * factor, 1.0)
            line.append(_Row(text, place, len(known), joint))
            known.append(Guess(parent, token, said, joint))
    return leaves
