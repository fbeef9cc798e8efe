"""What may come next, likeliest first, and how much of it is worth checking.

Candidates form a trie below the last committed token. Longer contexts are believed before
shorter ones, with the escape chances of PPM (Moffat's method C): what a context has not seen is
left to the next shorter one. Calibration then turns raw chances into measured ones, and the
candidates are checked that give the most tokens for the seconds of the step.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Ids
from dataclasses import dataclass
from enum import IntEnum
from operator import itemgetter

from common.model.tree import TokenTree
from verifier.cost import StepCost, Worth
from verifier.pool.calibration import Bucket, Calibration, Trust
from verifier.pool.contexts import Context

_MOST_SIBLINGS = 4
_LEAST_CHANCE = 0.03

_COUNT = itemgetter(1)


class Origin(IntEnum):
    """Where a candidate comes from; the first that knows it is named."""

    MATCH = 0
    """An earlier occurrence of the text's end, continued."""
    TEXT = 1
    """Counts over the sequence's own text."""
    SHARED = 2
    """N-grams of other sequences."""
    TARGET = 3
    """What the target chose where the text did not go: in the window, or after a wrong guess."""


@dataclass(frozen=True)
class Source:
    """Counts to predict from."""

    origin: Origin
    """Whose."""
    followers: Callable[[Context], Mapping[int, float] | None]
    """Counts by token after a context."""


class Forecast:
    """Candidates of one round: a trie in order of falling chance."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        """Token of each candidate."""
        self.parents: list[int] = []
        """Index of each one's parent; -1 stands for the root."""
        self.chances: list[float] = []
        """Chance that the text takes this path, `[candidates]`."""
        self.buckets: list[Bucket] = []
        """How each was predicted."""
        self.steps: list[float] = []
        """Chance given that the parent is right, before the sequence's own factor."""
        self.below: dict[int, list[int]] = {}
        """Candidates by parent."""
        self.worth = 0
        """How many of the first give the most tokens for the seconds of the step."""
        self.planted = 0
        """How many were put into the tree."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def expected(self) -> float:
        """Tokens that what is worth checking brings, on average."""
        return sum(self.chances[: self.worth])

    def plant(self, tree: TokenTree, count: int) -> None:
        """Adds the first `count` candidates to a tree."""
        nodes = [0] * (count + 1)  # the root's index, -1, is the last place
        for index in range(count):
            nodes[index] = tree.add(nodes[self.parents[index]], self.tokens[index])
        self.planted = count

    def origins(self, ids: Ids[int]) -> list[Origin]:
        """Where those planted candidates come from that a text went through, from the root down."""
        origins: list[Origin] = []
        at = -1
        for token in ids:
            below = (c for c in self.below.get(at, ()) if self.tokens[c] == token)
            at = next(below, self.planted)
            if at >= self.planted:
                break
            origins.append(Origin(self.buckets[at][0]))
        return origins


class Forecaster:
    """Predicts one sequence's text.

    Args:
        sources: What to predict from, the most trusted first.
        order: Longest context, in tokens.
        calibration: What predictions have been worth.
        cost: Of the engine's steps.
    """

    def __init__(
        self, sources: Ids[Source], order: int, calibration: Calibration, cost: StepCost
    ) -> None:
        self._sources = sources
        self._cost = cost
        self._order = order
        self._calibration = calibration
        self.trust = Trust()

    def forecast(self, ids: Ids[int], most: int, line: Ids[int] = (), agreed: int = 0) -> Forecast:
        """The likeliest candidates, and a few more than are worth checking.

        Args:
            ids: The text so far.
            most: Most candidates.
            line: A continuation that is more than counts can say; see `Match`.
            agreed: Tokens of context that agree with it.
        """
        out, factor, worth = Forecast(), self.trust.factor, Worth(self._cost)
        heap: list[tuple[float, int, int, int, Bucket, float, Context, int]] = []
        serial = 0

        def expand(parent: int, context: Context, chance: float, step: int) -> None:
            nonlocal serial
            expected = line[step] if 0 <= step < len(line) else None
            for token, conditional, bucket in self._predict(
                context, _LEAST_CHANCE / (chance * factor), expected, agreed + step
            ):
                joint = chance * min(conditional * factor, 0.99)
                if joint >= _LEAST_CHANCE:
                    serial += 1
                    after = step + 1 if token == expected else -1
                    entry = (-joint, serial, parent, token, bucket, conditional, context, after)
                    heapq.heappush(heap, entry)

        expand(-1, tuple(ids[-self._order :]), 1.0, 0)
        while heap and worth.seen < most and not worth.settled:
            negative, _, parent, token, bucket, conditional, context, step = heapq.heappop(heap)
            index = worth.seen
            out.tokens.append(token)
            out.parents.append(parent)
            out.chances.append(-negative)
            out.buckets.append(bucket)
            out.steps.append(conditional)
            out.below.setdefault(parent, []).append(index)
            worth.add(-negative)
            expand(index, (*context, token)[-self._order :], -negative, step)
        out.worth = worth.best
        return out

    def worth(self, forecast: Forecast, nodes: int, most: int) -> int:
        """How many of the first candidates to check beside draft nodes that are there already.

        Args:
            forecast: Made for a tree with none.
            nodes: Draft nodes of the tree.
            most: Most candidates.
        """
        if not nodes:
            return min(forecast.worth, most)
        worth = Worth(self._cost, nodes)
        for chance in forecast.chances[:most]:
            worth.add(chance)
        return worth.best

    def learn(self, forecast: Forecast, ids: Ids[int]) -> None:
        """Compares a forecast with the text that came.

        Args:
            forecast: What was predicted.
            ids: The tokens committed since.
        """
        at = -1
        for token in ids:
            candidates = forecast.below.get(at)
            if not candidates:
                break
            at = -1
            for candidate in candidates:
                passed = forecast.tokens[candidate] == token
                self._calibration.test(forecast.buckets[candidate], passed=passed)
                self.trust.test(forecast.steps[candidate], passed=passed)
                if passed:
                    at = candidate
            if at < 0:
                break
        self.trust.age()

    def _predict(
        self, context: Context, least: float, expected: int | None, agreed: int
    ) -> list[tuple[int, float, Bucket]]:
        """Tokens that may follow a context, with their chances; not all that fall below `least`."""
        out: list[tuple[int, float, Bucket]] = []
        mass = 1.0
        taken = set()
        if expected is not None:
            raw = (agreed + 0.5) / (agreed + 1.5)
            bucket = self._calibration.bucket(Origin.MATCH, min(agreed, 15).bit_length(), raw)
            chance = self._calibration.chance(bucket, raw)
            out.append((expected, chance, bucket))
            taken.add(expected)
            mass -= chance
        for length in range(len(context), 0, -1):
            if mass < least:
                break
            counts, origins = self._counts(context[-length:])
            for token in taken:
                counts.pop(token, None)
            if not counts:
                continue
            total = sum(counts.values())
            escape = min(len(counts), total)
            ranked = sorted(counts.items(), key=_COUNT, reverse=True)
            for token, count in ranked[:_MOST_SIBLINGS]:
                raw = mass * count / (total + escape)
                bucket = self._calibration.bucket(origins[token], length, raw)
                out.append((token, self._calibration.chance(bucket, raw), bucket))
                taken.add(token)
            mass *= escape / (total + escape)
        return out

    def _counts(self, context: Context) -> tuple[dict[int, float], dict[int, Origin]]:
        """All sources' counts after a context, and which source knew each token first."""
        counts: dict[int, float] = {}
        origins: dict[int, Origin] = {}
        for source in self._sources:
            followers = source.followers(context)
            if not followers:
                continue
            if not counts:
                counts = dict(followers)
                origins = dict.fromkeys(counts, source.origin)
                continue
            for token, count in followers.items():
                counts[token] = counts.get(token, 0.0) + count
                origins.setdefault(token, source.origin)
        return counts, origins
