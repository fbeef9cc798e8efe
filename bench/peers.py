"""What everyone has already: `generate` of transformers, plain and with its own speculation.

The options are those of transformers itself; where it has none, those of Spec-Bench.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer

from bench.contender import Loading
from bench.measurement import Sample, kept
from common.errors import StartupError
from common.model.loader import device_name

LOOKUP_TOKENS = 10


class Transformers:
    """A contender, see `bench.contender`: transformers with its own key/value cache.

    Args:
        loading: Which model.
    """

    def __init__(self, loading: Loading) -> None:
        torch.set_num_threads(loading.threads)
        self._model = from_directory(loading.target, loading)
        ends = self._model.generation_config.eos_token_id
        self._ends = set(ends if isinstance(ends, list) else [ends])
        self._options: dict[str, Any] = {}
        self._sampling: dict[str, Any] = {"do_sample": loading.temperature > 0}
        if loading.temperature > 0:  # its own defaults cut
            self._sampling |= {"temperature": loading.temperature, "top_k": 0, "top_p": 1.0}

    def generate(self, prompt_ids: list[int], max_tokens: int, seed: int) -> Sample:
        """Decode greedily, or draw with this seed."""
        torch.manual_seed(seed)
        clock = Clock()
        ids = torch.tensor([prompt_ids], device=self._model.device)
        output = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            streamer=clock,
            **self._sampling,
            **self._options,
        )
        # Assisted generation may go past the end token; what is past it counts as nothing.
        new = kept(output[0, len(prompt_ids) :].tolist()[:max_tokens], self._ends)
        return Sample(
            ids=tuple(new),
            tokens=max(0, len(new) - clock.first_tokens),
            seconds=clock.last_s - clock.first_s,
        )


class Assisted(Transformers):
    """Its assisted generation with the same pair; both models share the process's threads."""

    def __init__(self, loading: Loading) -> None:
        if loading.draft is None:
            raise StartupError("assisted generation needs a draft model")
        super().__init__(loading)
        self._options = {"assistant_model": from_directory(loading.draft, loading)}


class PromptLookup(Transformers):
    """Its prompt lookup."""

    def __init__(self, loading: Loading) -> None:
        super().__init__(loading)
        self._options = {"prompt_lookup_num_tokens": LOOKUP_TOKENS}


class Clock(BaseStreamer):  # type: ignore[misc]
    """Notes when the first and the last tokens came; `generate` hands over the prompt before."""

    def __init__(self) -> None:
        self.first_s = self.last_s = 0.0
        self.first_tokens = 0
        """Tokens that came when the clock started."""
        self._calls = 0

    def put(self, value: torch.Tensor) -> None:
        """Called with the prompt, then with the tokens of each pass."""
        self._calls += 1
        self.last_s = time.perf_counter()
        if self._calls == 2:
            self.first_s, self.first_tokens = self.last_s, value.numel()

    def end(self) -> None:
        """Called after the last token."""


def from_directory(model: str, loading: Loading) -> Any:
    """Load a model as transformers does."""
    kind = loading.dtype if loading.dtype == "auto" else getattr(torch, loading.dtype)
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=kind)
    return loaded.to(device_name(loading.device)).eval()
