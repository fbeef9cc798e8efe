"""What may come next, likeliest first, and how much of it is worth checking.

Candidates form a trie below the last committed token. Longer contexts are believed before
shorter ones, with the escape chances of PPM (Moffat's method C): what a context has not seen is
left to the next shorter one. Calibration then turns raw chances into measured ones, and the
candidates are checked that give the most tokens for the seconds of the step.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Protocol

from common.ngrams.calibration import Bucket, Calibration, Trust
from common.ngrams.contexts import Context, Contexts
from common.step_table import Others, StepTable, Worth, seconds_of

_MATCH = 0
"""Origin of what continues an earlier occurrence of the text's end; sources have others."""

_MOST_SIBLINGS = 4
_LEAST_CHANCE = 0.03

_COUNT = itemgetter(1)


class Tables(Protocol):
    """Counts that come as a table for each first token of a context."""

    def table(self, first: int) -> Contexts | None:
        """Contexts that begin with a token, as far as they are known by now. Never waits."""


@dataclass(eq=False)
class _Candidate:
    token: int
    parent: int  # index of the candidate before it; -1 stands for the root
    chance: float  # that the text takes this path
    bucket: Bucket
    step: float  # its chance given that the parent is right, before the sequence's own factor
    context: Context  # what is followed after it
    line: int  # tokens of the line that lead to it; -1 where it is off the line


class Predictor:
    """Predicts one sequence's text.

    Args:
        sources: What to predict from, each with a number from 1 to 3 for its origin, the most
            trusted first.
        order: Longest context, in tokens; at most 32.
        calibration: What predictions have been worth.
        steps: What a step takes.
    """

    def __init__(
        self,
        sources: Seq[tuple[int, Contexts | Tables]],
        order: int,
        calibration: Calibration,
        steps: StepTable,
    ) -> None:
        self._sources = sources
        self._order = order
        self._calibration = calibration
        self._seconds = partial(seconds_of, steps)
        self._trust = Trust()
        self._found: list[_Candidate] = []
        self._below: dict[int, list[_Candidate]] = {}
        self._doubted: list[tuple[int, Bucket]] = []  # too unlikely to come next

    def search(
        self,
        ids: Seq[int],
        most: int,
        others: Others = (0.0, 0.0),
        line: Seq[int] = (),
        agreed: int = 0,
    ) -> tuple[list[int], list[int], list[float], int]:
        """Finds the likeliest candidates, and a few more than are worth checking.

        Args:
            ids: The text so far.
            most: Most candidates.
            others: What else is in the step.
            line: A continuation that is more than counts can say; see `Match`.
            agreed: Tokens of context that agree with it.

        Returns:
            By falling chance: tokens, indices of their parents (-1 for the root), chances that the
            text takes the path so far; and how many of the first give the most tokens for the
            seconds of the step.
        """
        worth = Worth(self._seconds, others)
        heap: list[tuple[float, int, _Candidate]] = []
        serial, factor = 0, self._trust.factor
        found, context, chance, step = self._found, tuple(ids[-self._order :]), 1.0, 0
        found.clear()
        self._below, self._doubted = {}, []
        while True:
            expected = line[step] if 0 <= step < len(line) else None
            least = _LEAST_CHANCE / (chance * factor)
            for token, conditional, bucket in self._predict(
                context, least, expected, agreed + step
            ):
                if conditional >= least:
                    joint = chance * min(conditional * factor, 0.99)
                    serial += 1
                    after = step + 1 if token == expected else -1
                    further = (*context, token)[-self._order :]
                    candidate = _Candidate(
                        token, len(found) - 1, joint, bucket, conditional, further, after
                    )
                    heapq.heappush(heap, (-joint, serial, candidate))
                elif not found:
                    self._doubted.append((token, bucket))
            if not heap or worth.seen >= most or worth.settled:
                break
            best = heapq.heappop(heap)[2]
            found.append(best)
            self._below.setdefault(best.parent, []).append(best)
            worth.add(best.chance)
            context, chance, step = best.context, best.chance, best.line
        return (
            [each.token for each in found],
            [each.parent for each in found],
            [each.chance for each in found],
            worth.best,
        )

    def worth(self, nodes: int, most: int, others: Others = (0.0, 0.0)) -> int:
        """How many of the first candidates to check beside draft nodes that are there already.

        Args:
            nodes: Draft nodes of the tree.
            most: Most candidates.
            others: What else is in the step.
        """
        worth = Worth(self._seconds, others, nodes)
        for each in self._found[:most]:
            worth.add(each.chance)
        return worth.best

    def learn(self, ids: Seq[int]) -> None:
        """Compares what was found with the text that came.

        Args:
            ids: The tokens committed since.
        """
        at = -1
        for token, bucket in self._doubted if ids else ():
            self._calibration.test(bucket, passed=token == ids[0])
        for token in ids:
            passed = None
            for candidate in self._below.get(at, ()):
                right = candidate.token == token
                self._calibration.test(candidate.bucket, passed=right)
                self._trust.test(candidate.step, passed=right)
                passed = candidate if right else passed
            if passed is None:
                break
            at = self._found.index(passed)
        self._trust.age()

    def _predict(
        self, context: Context, least: float, expected: int | None, agreed: int
    ) -> list[tuple[int, float, Bucket]]:
        """Tokens that may follow a context, with their chances; not all that fall below `least`."""
        out: list[tuple[int, float, Bucket]] = []
        mass = 1.0
        taken = set()
        if expected is not None:
            raw = (agreed + 0.5) / (agreed + 1.5)
            bucket = self._calibration.bucket(_MATCH, min(agreed, 15).bit_length(), raw)
            chance = self._calibration.chance(bucket, raw)
            out.append((expected, chance, bucket))
            if chance >= least:  # else counts may know it better
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
            if not 0.0 < total < math.inf:
                continue
            escape = min(len(counts), total)
            ranked = sorted(counts.items(), key=_COUNT, reverse=True)
            for token, count in ranked[:_MOST_SIBLINGS]:
                raw = mass * count / (total + escape)
                bucket = self._calibration.bucket(origins[token], length, raw)
                out.append((token, self._calibration.chance(bucket, raw), bucket))
                taken.add(token)
            mass *= escape / (total + escape)
        return out

    def _counts(self, context: Context) -> tuple[dict[int, float], dict[int, int]]:
        """All sources' counts after a context, and which source knew each token first."""
        counts: dict[int, float] = {}
        origins: dict[int, int] = {}
        for origin, source in self._sources:
            known = source if isinstance(source, Contexts) else source.table(context[0])
            followers = known.followers(context) if known is not None else None
            for token, count in (followers or {}).items():
                counts[token] = counts.get(token, 0.0) + count
                origins.setdefault(token, origin)
        return counts, origins
