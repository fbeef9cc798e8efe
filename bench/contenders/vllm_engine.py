"""vLLM's engine as a contender: the same weights on the same cores, by its own speculation.

    PYTHON -P bench/contenders/vllm_engine.py NAME '{"target": …, "draft": …, "dtype": …, …}'

speaks as `bench.contenders.contender` does, by the Python of vLLM's own environment: nothing of
ours is imported. The engine is driven step by step in this one process, which on few cores is
faster than its server's several: no request waits for another process, and no text is made of its
tokens.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

CONTEXT_TOKENS = 2048
"""The bench's prompts are short; a cache of a model's own length may be larger than the memory."""
CACHE_BYTES = 1 << 30
"""Of all texts; it has to hold one that is as long as they may be."""

SPECULATION: dict[str, dict[str, Any]] = {
    "vllm": {},
    "vllm-draft": {"method": "draft_model", "num_speculative_tokens": 3},
    "vllm-ngram": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2},
}
"""By contender. vLLM has no length of its own that drafts would have where none is said."""

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "PYTHONWARNINGS": "ignore",
    "KMP_WARNINGS": "0",
}


class Engine:
    """The engine and its clock.

    Args:
        name: A key of `SPECULATION`.
        loading: As `bench.contenders.contender.Loading`.
    """

    def __init__(self, name: str, loading: dict[str, Any]) -> None:
        from vllm import LLM, SamplingParams, TokensPrompt
        from vllm.platforms import current_platform
        from vllm.sampling_params import RequestOutputKind

        if loading["device"] not in ("auto", current_platform.device_type):
            has, wanted = current_platform.device_type, loading["device"]
            raise ValueError(f"it is built for {has}, not for {wanted}")
        speculation = dict(SPECULATION[name])
        if speculation.get("method") == "draft_model":
            speculation["model"] = loading["draft"]
        config = json.loads(Path(loading["target"], "config.json").read_text("utf-8"))
        context = config.get("max_position_embeddings", CONTEXT_TOKENS)
        # Its own auto makes 16 bits of 32.
        own = config.get("dtype") or config.get("torch_dtype") or "auto"
        self._engine = LLM(
            model=loading["target"],
            dtype=own if loading["dtype"] == "auto" else loading["dtype"],
            max_model_len=min(context, CONTEXT_TOKENS),
            max_num_seqs=loading["at_once"],
            kv_cache_memory_bytes=CACHE_BYTES,
            skip_tokenizer_init=True,
            use_tqdm_on_load=False,
            speculative_config=speculation or None,
        ).llm_engine
        self._prompt, self._sampling, self._kind = TokensPrompt, SamplingParams, RequestOutputKind
        self._temperature = loading["temperature"]
        self._names = itertools.count()
        self._marks, self._turns = loading["marks"], itertools.count()

    def generate(self, prompt_ids: list[int], max_tokens: int, seed: int) -> dict[str, Any]:
        """Decode greedily, or draw with this seed."""
        text = Text(self._add(prompt_ids, max_tokens, seed))
        while not text.ended:
            for output in self._engine.step():
                text.take(output)
        return text.sample()

    def crowd(
        self, prompts: list[list[int]], max_tokens: int, at_once: int, least_s: float
    ) -> dict[str, Any]:
        """Decode every prompt at least once, several at a time; the first with a seed of 0."""
        texts: list[Text] = []
        running: dict[str, Text] = {}
        began = ended = 0.0
        tokens = 0
        until = time.perf_counter() + least_s
        while running or not ended:
            while len(running) < at_once and not ended:
                if len(texts) >= len(prompts) and time.perf_counter() >= until:
                    ended = time.perf_counter()  # from now on fewer run than are to
                    break
                seed = len(texts) % len(prompts)
                text = Text(self._add(self._unseen(prompts[seed]), max_tokens, seed))
                texts.append(text)
                running[text.name] = text
            for output in self._engine.step():
                text = running[output.request_id]
                text.take(output)
                tokens += len(output.outputs[0].token_ids) if began and not ended else 0
                if text.ended:
                    del running[text.name]
            began = began or min((text.at_s[0] for text in texts if text.at_s), default=0.0)
        samples = [text.sample() for text in texts[: len(prompts)]]
        return {"samples": samples, "tokens": tokens, "seconds": ended - began}

    def _unseen(self, prompt_ids: list[int]) -> list[int]:
        """A prompt that nobody has asked yet, as by `bench.unseen`, if there are to be such."""
        if not self._marks:
            return prompt_ids
        many, last = divmod(next(self._turns), len(self._marks))
        first = many % len(self._marks)
        return [*prompt_ids[:1], self._marks[first], self._marks[last], *prompt_ids[1:]]

    def _add(self, prompt_ids: list[int], max_tokens: int, seed: int) -> str:
        name = str(next(self._names))
        sampling = self._sampling(
            temperature=self._temperature,
            seed=seed,
            max_tokens=max_tokens,
            detokenize=False,
            output_kind=self._kind.DELTA,
        )
        self._engine.add_request(name, self._prompt(prompt_token_ids=prompt_ids), sampling)
        return name


class Text:
    """What came of a request, and when."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ids: list[int] = []
        self.at_s: list[float] = []
        """When tokens came, step by step."""
        self.ended = False
        self._first_tokens = 0
        self._prompt_tokens = self._cached_tokens = 0

    def take(self, output: Any) -> None:
        """Take in what a step brought."""
        new = output.outputs[0].token_ids
        if new:
            self.at_s.append(time.perf_counter())
            self._first_tokens = self._first_tokens or len(new)
            self.ids += new
        self.ended = output.finished
        cached = getattr(output, "num_cached_tokens", None)
        if cached is not None:
            self._prompt_tokens = len(output.prompt_token_ids)
            self._cached_tokens = cached

    def sample(self) -> dict[str, Any]:
        """Return it as `bench.measurement.Sample` has it."""
        return {
            "ids": self.ids,
            "tokens": len(self.ids) - self._first_tokens,
            "seconds": self.at_s[-1] - self.at_s[0],
            "prompt_tokens": self._prompt_tokens,
            "cached_tokens": self._cached_tokens,
        }


def prepare(threads: int) -> None:
    """Set what vLLM reads as it is imported, in a new process of the same name where it must be.

    On x86 it wants Intel's OpenMP, which comes with it, loaded before all else: without, steps take
    1.5 to 2 times as long.
    """
    cores = sorted(os.sched_getaffinity(0))[:threads]
    os.environ.update(ENVIRONMENT, VLLM_CPU_OMP_THREADS_BIND=",".join(map(str, cores)))
    openmp, loaded = Path(sys.prefix, "lib", "libiomp5.so"), os.environ.get("LD_PRELOAD", "")
    if openmp.exists() and openmp.name not in loaded:
        os.environ["LD_PRELOAD"] = f"{openmp}:{loaded}".rstrip(":")
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def main() -> None:
    """Answer requests until standard input ends."""
    name, loading = sys.argv[1], json.loads(sys.argv[2])
    prepare(loading["threads"])
    # Only our answers may go to standard output; vLLM logs there.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        engine = Engine(name, loading)
    except Exception as error:
        print(json.dumps({"error": f"vLLM did not start: {error}"}), file=answers, flush=True)
        return
    for line in sys.stdin:
        request = json.loads(line)
        found = engine.crowd(**request) if "prompts" in request else engine.generate(**request)
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: PYTHON -P bench/contenders/vllm_engine.py NAME LOADING_AS_JSON")
    main()
