"""Contenders that run in a process of their own, so that none disturbs another's threads.

    python -m bench.contender NAME '{"target": …, "draft": …, "dtype": …, …}'

reads one request a line, `{"prompt_ids": [...], "max_tokens": N, "seed": S}`, and answers each with
`{"ids": [...], "tokens": N, "seconds": S}`, as `bench.measurement.Sample` has them, or
`{"error": "..."}` where it cannot start. Between requests it sleeps.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Protocol, Self

from bench.measurement import Sample
from common.errors import PacelineError, StartupError
from launcher.process import tethered

CONTENDERS = {
    "engine": "bench.inprocess:InProcess",
    "transformers": "bench.peers:Transformers",
    "assisted": "bench.peers:Assisted",
    "lookup": "bench.peers:PromptLookup",
    "llama": "bench.llama_cpp:LlamaServer",
    "llama-draft": "bench.llama_cpp:LlamaDrafting",
}


STOP_S = 3.0
"""How long a contender has to end by itself."""


@dataclass(frozen=True, kw_only=True)
class Loading:
    """What a contender loads, and how."""

    target: str
    """Directory of the model whose text is wanted."""

    draft: str | None = None
    """Directory of the model that guesses, for those who use one."""

    dtype: str = "auto"
    """torch dtype of the weights, or auto."""

    device: str = "auto"
    """torch device, or auto."""

    threads: int = 1
    """CPU threads."""

    temperature: float = 0.0
    """0 decodes greedily."""

    llama_server: str = "llama-server"
    """llama.cpp's program, for those who use it."""


class Engine(Protocol):
    """What a contender must do."""

    def generate(self, prompt_ids: list[int], max_tokens: int, seed: int) -> Sample:
        """Decode greedily, or draw with this seed."""


class Contender:
    """A contender's process, as a context manager.

    Args:
        name: One of `CONTENDERS`.
        loading: What it loads.
    """

    def __init__(self, name: str, loading: Loading) -> None:
        self._name = name
        flags = [name, json.dumps(asdict(loading))]
        self._child = subprocess.Popen(
            tethered([sys.executable, "-P", "-m", "bench.contender", *flags]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._child.communicate(timeout=STOP_S)  # it ends with its standard input
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.communicate()

    def generate(self, prompt_ids: Sequence[int], max_tokens: int, seed: int = 0) -> Sample:
        """Have it decode.

        Raises:
            StartupError: It could not start, or died; its own words are on standard error then.
        """
        assert self._child.stdin
        assert self._child.stdout
        request = {"prompt_ids": list(prompt_ids), "max_tokens": max_tokens, "seed": seed}
        with suppress(BrokenPipeError):  # one that could not start has said why
            print(json.dumps(request), file=self._child.stdin, flush=True)
        try:
            answer = json.loads(self._child.stdout.readline())
        except ValueError:
            raise StartupError(f"the contender {self._name} died") from None
        if "error" in answer:
            raise StartupError(answer["error"])
        return Sample(ids=tuple(answer["ids"]), tokens=answer["tokens"], seconds=answer["seconds"])


def serve(name: str, loading: Loading) -> None:
    """Answer requests until standard input ends."""
    # Only our answers may go to standard output; libraries print where they like.
    answers, sys.stdout = sys.stdout, sys.stderr
    module, cls = CONTENDERS[name].split(":")
    try:
        engine: Engine = getattr(importlib.import_module(module), cls)(loading)
    except PacelineError as error:
        print(json.dumps({"error": str(error)}), file=answers, flush=True)
        return
    for line in sys.stdin:
        request = json.loads(line)
        sample = engine.generate(**request)
        answer = {"ids": sample.ids, "tokens": sample.tokens, "seconds": sample.seconds}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], Loading(**json.loads(sys.argv[2])))
