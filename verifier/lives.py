"""How texts begin and end in a verifier's engine: who is told, and what is given back.

A text ends once: finished, failed, cancelled, or because nobody can be told of it any more. Its
place, its cache and what drafts for it are given back then, whatever of that fails.
"""

from __future__ import annotations

import logging
from functools import partial

from common.errors import PacelineError
from common.inbox import attempt
from common.model.runner import Runner
from verifier.choice import MethodChoice
from verifier.failures import Failures
from verifier.intake import Intake
from verifier.methods import Methods, canonical
from verifier.scheduler import Scheduler
from verifier.sequence import Event, Sequence
from verifier.totals import Totals

_log = logging.getLogger(__name__)


class Lives:
    """Begins texts and ends them. Used on the engine's thread.

    Args:
        intake: Counts those inside.
        choice: Finds a method for a text that leaves that open.
        methods: What drafts.
        scheduler: Runs them.
        runner: The target model.
        totals: Counts them.
        failures: Told of drafts that fail.
    """

    def __init__(
        self,
        intake: Intake,
        choice: MethodChoice,
        methods: Methods,
        scheduler: Scheduler,
        runner: Runner,
        totals: Totals,
        failures: Failures,
    ) -> None:
        self._intake, self._choice = intake, choice
        self._methods, self._scheduler, self._runner = methods, scheduler, runner
        self._totals, self._failures = totals, failures

    def begin(self, sequence: Sequence) -> None:
        """Gives a text that was admitted a method of its own; plainly, where that cannot begin."""
        sequence.begun = True
        self._totals.begin(sequence.arrived_at)
        model = self._runner.loaded
        try:
            sequence.counts.method = self._choice.choose(sequence.request)
            sequence.method = canonical(sequence.counts.method)
            sequence.watch_ids(model.vocab_size, model.device)
        except Exception as error:
            self.fail(sequence, error)
            return
        try:
            self._methods.of(sequence).open(sequence)
        except Exception as error:  # a draft is never worth the text
            self._failures.add("draft", error, sequence.names)
            attempt(lambda: self._methods.of(sequence).close(sequence))
            sequence.method = sequence.counts.method = "plain"

    def finish(self, sequence: Sequence) -> None:
        """Ends a text that is complete."""
        self._retire(sequence)
        self._learn(sequence)

    def fail(self, sequence: Sequence, error: Exception) -> None:
        """Ends a text with an error for an answer, which says nothing of its method."""
        _log.error("a sequence failed", exc_info=error, extra=sequence.names)
        attempt(partial(self._retire, sequence))
        event = Event(error=PacelineError(f"the engine failed: {type(error).__name__}"))
        self.tell(sequence, event)

    def tell(self, sequence: Sequence, event: Event) -> None:
        """Tells who asked for a text; one that nobody can be told of does not go on."""
        try:
            sequence.listener(event)
        except Exception:
            _log.exception("a listener failed", extra=sequence.names)
            attempt(partial(self._retire, sequence))

    def leave(self, sequence: Sequence) -> None:
        """Ends a text that goes on to nobody, as one does that has come to a stop string, without a
        word; how fast it was counts all the same."""
        if not sequence.gone:  # a cancel may cross the end on its way
            self._give_back(sequence)
            self._learn(sequence)

    def _retire(self, sequence: Sequence) -> None:
        self._intake.leave(sequence.ticket)
        if not sequence.gone:
            self._give_back(sequence)

    def _give_back(self, sequence: Sequence) -> None:
        """Ends it in the engine."""
        sequence.gone = True
        self._scheduler.remove(sequence)
        if sequence.begun:
            self._totals.end(started=sequence.counts.rounds > 0)
            self._methods.of(sequence).close(sequence)

    def _learn(self, sequence: Sequence) -> None:
        """Takes what its method was worth, until its latest token: it may have waited since."""
        seconds = sequence.latest_at - sequence.began_at
        self._choice.learn(sequence, seconds, sequence.output_len - 1)
