"""What everyone has already: `generate` of transformers."""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer


class Transformers:
    """A contender, see `bench.contender`: transformers with its own key/value cache.

    Args:
        model: Model directory.
        dtype: torch dtype of the weights, or auto.
        threads: CPU threads.
    """

    def __init__(self, model: str, dtype: str, threads: int) -> None:
        torch.set_num_threads(threads)
        kind = dtype if dtype == "auto" else getattr(torch, dtype)
        self._model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=kind)
        self._model.eval()

    def generate(self, prompt_ids: list[int], max_tokens: int) -> tuple[list[int], float]:
        """Decode greedily.

        Returns:
            The new ids, and the seconds from the first of them to the last.
        """
        clock = Clock()
        ids = torch.tensor([prompt_ids])
        output = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=False,
            streamer=clock,
        )
        return output[0, len(prompt_ids) :].tolist(), clock.last_s - clock.first_s


class Clock(BaseStreamer):  # type: ignore[misc]
    """Notes when the first and the last token came; `generate` hands over the prompt before."""

    def __init__(self) -> None:
        self.first_s = self.last_s = 0.0
        self._calls = 0

    def put(self, value: torch.Tensor) -> None:
        """Called with the prompt, then with each token."""
        self._calls += 1
        if self._calls == 2:
            self.first_s = time.perf_counter()
        self.last_s = time.perf_counter()

    def end(self) -> None:
        """Called after the last token."""
