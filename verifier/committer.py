"""What a pass found becomes text: tokens are committed and counted, and their proposer is told.

Who else is told, and when, and what becomes of a text that is done, is the engine's.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from collections.abc import Sequence as Seq

from torch import Tensor

from common.model.output import rows_of
from common.model.runner import Runner
from common.model.segment import tree_slots
from common.model.tree import TokenTree
from verifier.acceptance.base import Rule, Scores
from verifier.failures import Failures
from verifier.methods import Methods
from verifier.proposer import Outcome
from verifier.round_times import RoundTimes
from verifier.scheduler import Work
from verifier.scoring import Chunk
from verifier.sequence import Event, Sequence, Source
from verifier.totals import Totals


class Committer:
    """Commits rounds, sequence by sequence, on the engine's thread.

    Args:
        runner: The target model, whose cache keeps what was accepted.
        rules: By name.
        methods: What drafts.
        totals: Counts what was done.
        failures: Told of drafts that fail.
    """

    def __init__(
        self,
        runner: Runner,
        rules: Mapping[str, Rule],
        methods: Methods,
        totals: Totals,
        failures: Failures,
    ) -> None:
        self._runner, self._methods = runner, methods
        self._totals, self._failures = totals, failures
        self.rules = rules
        """Of acceptance, by name."""

    def reads(self, batch: Seq[Work]) -> bool:
        """Whether any reader wants to see what is committed of a batch."""
        try:
            return any(
                reader.reads(work.sequence, work.sequence.computed)
                for reader in self._methods.readers
                for work in batch
            )
        except Exception as error:  # a draft is never worth the text
            self._failures.add("draft", error, {})
            return False

    def commit(self, sequence: Sequence, rows: int, scores: Scores) -> Event:
        """Keeps what was right of a round's draft, and the token that follows.

        Args:
            sequence: Whose round.
            rows: Committed tokens that its pass computed.
            scores: What the pass found.
        """
        tree = scores.tree
        accepted, last = self.rules[sequence.request.acceptance](scores)
        root = len(sequence.ids) - 1
        taken = sequence.commit([*(tree.ids[node] for node in accepted), last])
        kept = accepted[:taken]
        if kept:
            self._keep_path(sequence, tree, root, kept)
        if scores.output.features is not None:
            self._show(sequence, scores.output.features, scores.row, rows, kept)
        sequence.add_computed(rows + len(kept))
        owners = [tree.owners[node] for node in kept]
        nodes = tree.draft_tokens
        drafted = nodes + tree.probes(kept)
        if not sequence.counts.rounds:
            self._totals.prompt(sequence.prompt_len, sequence.counts.cached_tokens)
        sequence.counts.add_round(drafted, len(kept), owners)
        self._totals.round(sequence.method, drafted, len(kept))
        whole = nodes > 0 and not tree.children(accepted[-1] if accepted else 0)
        sources = [Source.ACCEPTED] * len(kept)
        if taken > len(kept):
            sources.append(Source.BONUS if whole else Source.RECOVERED)
        outcome = Outcome(
            tree=tree,
            choices=scores.choices,
            accepted=kept,
            ids=sequence.ids[-taken:],
            output=scores.output,
            at=scores.first + (kept[-1] if kept else 0),
        )
        times = self._lap(sequence, drafted, len(kept))
        return self._close(sequence, outcome, sources, times)

    def chunk(self, sequence: Sequence, rows: int, chunk: Chunk) -> None:
        """Takes note of a computed part of a prompt.

        Args:
            sequence: Whose.
            rows: How many tokens.
            chunk: Where they are in the pass.
        """
        if chunk.output.features is not None:
            self._show(sequence, chunk.output.features, chunk.row, rows)
        sequence.add_computed(rows)

    def commit_several(self, sequence: Sequence, tree: TokenTree, found: list[int]) -> Event:
        """Keeps the tokens of several passes without drafts.

        Args:
            sequence: Whose.
            tree: Of the first pass: its root alone.
            found: What each pass chose.
        """
        taken = sequence.commit(found)
        ids = found[:taken]
        sequence.add_computed(taken)
        sequence.counts.rounds += taken
        outcome = Outcome(tree=tree, choices=ids[:1], accepted=(), ids=ids)
        return self._close(sequence, outcome, [Source.RECOVERED] * taken)

    def _close(
        self,
        sequence: Sequence,
        outcome: Outcome,
        sources: list[Source],
        times: RoundTimes | None = None,
    ) -> Event:
        """Tells a sequence's proposer what was committed; returns what to tell everyone else."""
        self._totals.tokens += len(outcome.ids)
        try:
            self._methods.of(sequence).observe(sequence, outcome)
        except Exception as error:  # a draft is never worth the text
            self._failures.add("draft", error, sequence.names)
        sequence.latest_at = time.monotonic()
        sequence.began_at = sequence.began_at or sequence.latest_at
        counts = sequence.counts.snapshot()
        return Event(outcome.ids, sources, sequence.finished, counts, times=times)

    def _show(
        self, sequence: Sequence, features: Tensor, first: int, rows: int, kept: Seq[int] = ()
    ) -> None:
        """Shows readers the target's states at committed rows of a pass.

        Args:
            sequence: Whose.
            features: Of all rows of the pass.
            first: The first of them that is its.
            rows: How many of them are of committed tokens; the last is the root of its tree.
            kept: Nodes of that which were accepted.
        """
        position, root = sequence.computed, first + rows - 1
        for reader in self._methods.readers:
            try:
                if reader.reads(sequence, position):
                    states = features[first : root + 1]
                    if kept:
                        nodes = [root + node for node in kept]
                        states = rows_of(features, [*range(first, root + 1), *nodes])
                    reader.read(sequence, position, states)
            except Exception as error:  # a draft is never worth the text
                self._failures.add("draft", error, sequence.names)

    def _lap(self, sequence: Sequence, drafted: int, accepted: int) -> RoundTimes | None:
        """How long the round took, where the request wants to know."""
        if sequence.stopwatch is None:
            return None
        ready, wire = self._methods.draft.waited(sequence)
        now = time.monotonic()
        return sequence.stopwatch.lap(
            now, ready_s=ready, wire_s=wire, drafted=drafted, accepted=accepted
        )

    def _keep_path(self, sequence: Sequence, tree: TokenTree, root: int, kept: list[int]) -> None:
        """Moves accepted nodes' keys and values to the slots of their positions."""
        first = tree.path_cover()[0]
        if kept == first[1 : 1 + len(kept)]:  # they are there
            return
        slots = sequence.lease.slots
        held = tree_slots(tree, root, slots)
        targets = slots[root + 1 : root + 1 + len(kept)].tolist()  # of one depth after the other
        moves = [(held[node], to) for node, to in zip(kept, targets, strict=True)]
        self._runner.move([move for move in moves if move[0] != move[1]])
