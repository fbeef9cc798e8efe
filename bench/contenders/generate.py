"""What everyone has already: `generate` of transformers, plain and with its own speculation.

The options are those of transformers itself; where it has none, those of Spec-Bench.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import AutoConfig, GenerationConfig
from transformers.generation.streamers import BaseStreamer

from bench.contenders.contender import Loading
from bench.measurement import Pass, Sample, kept
from bench.unseen import Unseen
from common.errors import StartupError
from common.model.hf.pictures import loader_of
from common.model.loader import device_name

LOOKUP_TOKENS = 10


class Transformers:
    """A contender: transformers with its own key/value cache.

    Args:
        loading: Which model.
    """

    def __init__(self, loading: Loading) -> None:
        torch.set_num_threads(loading.threads)
        self._model = from_directory(loading.target, loading)
        ends = self._model.generation_config.eos_token_id
        self._ends = set(ends if isinstance(ends, list) else [ends])
        self._unseen = Unseen(loading.marks)
        self._options: dict[str, Any] = {}
        sampling: dict[str, Any] = {"do_sample": loading.temperature > 0}
        if loading.temperature > 0:  # its own defaults cut
            sampling |= {"temperature": loading.temperature, "top_k": 0, "top_p": 1.0}
        # The model's own may have penalties, which services do not take from it.
        self._model.generation_config = GenerationConfig(
            eos_token_id=ends, pad_token_id=0, **sampling
        )

    def generate(self, prompt_ids: list[int], max_tokens: int, seed: int) -> Sample:
        """Decode greedily, or draw with this seed."""
        torch.manual_seed(seed)
        (new,), clock = self._written([prompt_ids], max_tokens)
        return Sample(
            ids=tuple(new),
            tokens=max(0, len(new) - clock.first_tokens),
            seconds=clock.at_s[-1] - clock.at_s[0],
        )

    def crowd(
        self, prompts: list[list[int]], max_tokens: int, at_once: int, least_s: float
    ) -> Pass:
        """Decode every prompt at least once, batch by batch: none begins before all have ended.

        Decoding alone counts, as of one text: each batch from its first tokens on. Of prompts that
        nobody has asked yet prefill counts, too.
        """
        samples: dict[int, Sample] = {}
        tokens, seconds, turn = 0, 0.0, 0
        until = time.perf_counter() + least_s
        while turn < len(prompts) or time.perf_counter() < until:
            torch.manual_seed(turn)
            batch = [self._unseen(prompts[(turn + row) % len(prompts)]) for row in range(at_once)]
            began_s = time.perf_counter()
            rows, clock = self._written(batch, max_tokens)
            if not self._unseen.changes:
                began_s = clock.at_s[0]
            for row in rows:
                tokens += len(row) - (not self._unseen.changes)
                samples[turn] = Sample(
                    ids=tuple(row),
                    tokens=len(row) - 1,
                    seconds=clock.at_s[len(row) - 1] - clock.at_s[0],
                )
                turn += 1
            seconds += clock.at_s[-1] - began_s
        return Pass(
            samples=tuple(samples[turn] for turn in range(len(prompts))),
            tokens=tokens,
            seconds=seconds,
        )

    def _written(self, prompts: list[list[int]], max_tokens: int) -> tuple[list[list[int]], Clock]:
        """Continues prompts together; what comes after an end token counts as nothing."""
        clock, width = Clock(), max(map(len, prompts))
        padding = [width - len(prompt) for prompt in prompts]
        rows = [[0] * pad + prompt for pad, prompt in zip(padding, prompts, strict=True)]
        mask = [[0] * pad + [1] * (width - pad) for pad in padding]
        output = self._model.generate(
            torch.tensor(rows, device=self._model.device),
            attention_mask=torch.tensor(mask, device=self._model.device),
            max_new_tokens=max_tokens,
            streamer=clock,
            **self._options,
        )
        # Assisted generation may go past the end token, and past the tokens asked for.
        return [kept(row[width:][:max_tokens], self._ends) for row in output.tolist()], clock


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
    """Notes when tokens came; `generate` hands over the prompt before."""

    def __init__(self) -> None:
        self.at_s: list[float] = []
        """When, for each pass."""
        self.first_tokens = 0
        """Tokens of the first one."""
        self._begun = False

    def put(self, value: torch.Tensor) -> None:
        """Called with the prompt, then with the tokens of each pass."""
        if self._begun:
            self.at_s.append(time.perf_counter())
            self.first_tokens = self.first_tokens or value.numel()
        self._begun = True

    def end(self) -> None:
        """Called after the last token."""


def from_directory(model: str, loading: Loading) -> Any:
    """Load a model as transformers does."""
    kind = loading.dtype if loading.dtype == "auto" else getattr(torch, loading.dtype)
    loaded = loader_of(AutoConfig.from_pretrained(model)).from_pretrained(model, dtype=kind)
    return loaded.to(device_name(loading.device)).eval()
