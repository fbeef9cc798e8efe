"""The verifier's engine called directly: what the services around it cost shows against this."""

from __future__ import annotations

import time

import torch

from bench.contenders.contender import Loading
from bench.measurement import Sample
from common.model import threads
from common.model.loader import load
from common.model.runner import Runner
from common.sampling_params import SamplingParams
from verifier.config import LEAST_KV_BYTES, EngineConfig
from verifier.engine import Engine
from verifier.sequence import Event, Request


class InProcess:
    """A contender: plain decoding by the engine, no service in between.

    Args:
        loading: Which model.
    """

    def __init__(self, loading: Loading) -> None:
        torch.set_num_threads(loading.own_threads)
        config = EngineConfig()
        loaded = load(
            loading.target,
            dtype=loading.dtype,  # type: ignore[arg-type]
            quantize=loading.quantize,  # type: ignore[arg-type]
            device=loading.device,
            most_threads=loading.threads,
        )
        runner = Runner(loaded, kv_bytes=LEAST_KV_BYTES, block_tokens=config.block_tokens)
        threads.choose(runner)
        self._engine = Engine(runner, config)
        self._temperature = loading.temperature
        self._eos = frozenset(loaded.eos_token_ids)

    def generate(self, prompt_ids: list[int], max_tokens: int, seed: int) -> Sample:
        """Decode greedily, or draw with this seed."""
        heard: list[tuple[float, Event]] = []
        request = Request(
            request_id="bench",
            prompt_ids=tuple(prompt_ids),
            max_tokens=max_tokens,
            sampling=SamplingParams(temperature=self._temperature, seed=seed),
            stop_ids=self._eos,
        )
        self._engine.submit(request, lambda event: heard.append((time.perf_counter(), event)))
        while not (heard and (heard[-1][1].finish or heard[-1][1].error)):
            if not self._engine.step():
                self._engine.wait()
        if error := heard[-1][1].error:
            raise error
        told = [(at_s, event.ids) for at_s, event in heard if event.ids]
        return Sample(
            ids=tuple(token for _, ids in told for token in ids),
            tokens=sum(len(ids) for _, ids in told[1:]),
            seconds=told[-1][0] - told[0][0],
        )
