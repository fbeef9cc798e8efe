"""A model whose passes take a time of their own, and whose choices are wrong now and then."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import torch

from common.model.loader import load
from common.model.output import Computed, Output
from common.model.roll import Drawing
from common.model.runner import Runner
from common.model.segment import Segment

KV_BYTES = 8 << 20


class SlowRunner(Runner):
    """Runs a model, and waits until the pass has taken as long as it should.

    That is the time told as long as the pass itself is short of it. So the model runs in bfloat16,
    for which there is a compiled decoder: through torch a pass of the smallest model takes
    milliseconds of a core that a fleet of workers shares.

    Args:
        model: Its directory.
        step_s: Least time of a pass, in seconds.
        session_s: What each further session in the pass adds, in seconds.
        acceptance: Share of rows whose best token stays the best; of the others the two best
            change places.
        seed: Of which these are.
    """

    def __init__(
        self,
        model: str,
        *,
        step_s: float,
        session_s: float = 0.0,
        acceptance: float = 1.0,
        seed: int = 0,
    ) -> None:
        self._step_s = self._session_s = 0.0  # what the first checks run takes no time
        self._wrong, self._source = 0.0, random.Random(seed)
        super().__init__(load(model, dtype="bfloat16", device="cpu"), kv_bytes=KV_BYTES)
        self._step_s, self._session_s, self._wrong = step_s, session_s, 1 - acceptance

    @property
    def rolls(self) -> bool:
        """Never: passes that follow one another in one call would take no time."""
        return False

    def forward(
        self, segments: Sequence[Segment], drawings: Sequence[Drawing] = (), *, tap: bool = True
    ) -> Output:
        """One pass; see `Runner.forward`."""
        done_at = time.monotonic() + self._step_s + self._session_s * (len(segments) - 1)
        output = super().forward(segments, drawings, tap=tap)
        if self._wrong:
            output = self._misled(output)
        time.sleep(max(done_at - time.monotonic(), 0.0))
        return output

    @torch.inference_mode()
    def _misled(self, output: Output) -> Output:
        """Lets the two best tokens of some rows change places."""
        logits = output.logits
        rows = [row for row in range(len(logits)) if self._source.random() < self._wrong]
        if rows:
            values, ids = logits[rows].topk(2, dim=-1)
            for row, (best, next_best), at in zip(rows, values, ids, strict=True):
                logits[row, at[0]], logits[row, at[1]] = next_best, best
        return Computed(logits, output.states)
