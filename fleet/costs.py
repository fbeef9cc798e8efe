"""How long a model's steps take on a GPU, by a roofline: memory traffic or arithmetic, the slower.

A step reads all weights and the keys and values of its sequences once, and multiplies every row
with every parameter. With few rows memory decides, so that checking a draft costs little more than
one token; with many arithmetic does.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet.gpus import Gpu
from fleet.workload import Assumptions, ModelSize


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A model on a GPU."""

    gpu: Gpu
    """The GPU."""
    model: ModelSize
    """The model."""
    assumptions: Assumptions
    """How near it comes to the GPU's figures."""

    def step_s(self, sequences: float, rows: float, context_tokens: float) -> float:
        """Returns the duration of one step in seconds.

        Args:
            sequences: Sequences in it; means may be fractions.
            rows: Rows of all of them together.
            context_tokens: Mean length of a sequence.
        """
        kv_bytes = sequences * context_tokens * self.model.kv_bytes_per_token
        read_s = (self.model.weight_bytes + kv_bytes) / self._bytes_per_s
        return max(read_s, rows * self._row_s) + self.assumptions.overhead_ms / 1e3

    def prefill_s(self, tokens: float) -> float:
        """Returns the duration of a prefill in seconds."""
        return self.step_s(0, tokens, 0)

    def held_sequences(self, context_tokens: float) -> int:
        """Returns how many sequences of a length its memory holds; 0 where the weights do not
        fit."""
        free = 1e9 * self.gpu.memory_gb * self.assumptions.memory_use - self.model.stored_bytes
        if free <= 0:
            return 0
        return int(free // (context_tokens * self.model.kv_bytes_per_token))

    def most_sequences(self, context_tokens: float) -> int:
        """Returns how many sequences of a length a verifier's batch takes; 0 where the weights do
        not fit."""
        return min(self.held_sequences(context_tokens), self.assumptions.most_sequences)

    @property
    def _bytes_per_s(self) -> float:
        return 1e9 * self.gpu.bandwidth_gb_s * self.assumptions.memory_efficiency

    @property
    def _row_s(self) -> float:
        flops = 2e9 * self.model.params_billion
        return flops / (1e12 * self.gpu.tflops * self.assumptions.compute_efficiency)
