"""Contenders that run in a process of their own, so that none disturbs another's threads.

    python -m bench.contenders.contender NAME '{"target": …, "draft": …, "dtype": …, …}'

reads one request a line and answers each with one. `{"prompt_ids": [...], "max_tokens": N, "seed":
S}` asks for one text, and gets `{"ids": [...], "tokens": N, "seconds": S, …}`, as
`bench.measurement.Sample` has them. `{"prompts": [[...], ...], "max_tokens": N, "at_once": N,
"least_s": S}` asks for several at a time, see `bench.crowd`, and gets a `Pass` in the same way. One
that cannot start answers `{"error": "..."}`. Between requests it sleeps.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from bench.measurement import Pass, Sample
from common import logs
from common.errors import PacelineError, StartupError
from launcher.process import OFFLINE, tethered

CONTENDERS = {
    "engine": "bench.contenders.inprocess:InProcess",
    "transformers": "bench.contenders.generate:Transformers",
    "assisted": "bench.contenders.generate:Assisted",
    "lookup": "bench.contenders.generate:PromptLookup",
    "llama": "bench.contenders.llama_cpp:LlamaServer",
    "llama-draft": "bench.contenders.llama_cpp:LlamaDrafting",
}
"""Those that run by our own Python: module and class."""

VLLM = Path(__file__).with_name("vllm_engine.py")
"""The others, which want vLLM's environment and nothing of ours."""

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

    quantize: str = "none"
    """What the target's weights are rounded to: none, int8, int4."""

    draft_quantize: str = "none"
    """What those of the model that guesses are."""

    device: str = "auto"
    """torch device, or auto."""

    threads: int = 1
    """CPU threads: all that the models of the services may take together."""

    own_threads: int = 1
    """Those that each of them has for itself, which says how our own engine runs."""

    temperature: float = 0.0
    """0 decodes greedily."""

    at_once: int = 1
    """Texts that it is to take at a time, at most."""

    marks: tuple[int, ...] = ()
    """What makes prompts of several at once ones that nobody has asked yet, see `bench.unseen`."""

    llama_server: str = "llama-server"
    """llama.cpp's program, for those who use it."""

    vllm: str = "vllm"
    """vLLM's program, beside which is the Python that has it, for those who use it."""


class Engine(Protocol):
    """What a contender must do; `crowd` only those that are asked for several texts at a time."""

    def generate(self, prompt_ids: list[int], max_tokens: int, seed: int) -> Sample:
        """Decode greedily, or draw with this seed."""

    def crowd(
        self, prompts: list[list[int]], max_tokens: int, at_once: int, least_s: float
    ) -> Pass:
        """Decode every prompt at least once, see `bench.crowd`; the first with a seed of 0."""


class Contender:
    """A contender's process, as a context manager.

    It starts with the first request, so that those of a run do so one after the other: engines
    measure the machine as they start, and want it for themselves.

    Args:
        name: A key of `bench.settings.PEERS`.
        loading: What it loads.
    """

    def __init__(self, name: str, loading: Loading) -> None:
        self._name, self._loading = name, loading
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is None:
            return
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
        request = {"prompt_ids": list(prompt_ids), "max_tokens": max_tokens, "seed": seed}
        return _sample(self._ask(request))

    def crowd(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, at_once: int, least_s: float
    ) -> Pass:
        """Have it decode several prompts at a time.

        Raises:
            StartupError: As in `generate`.
        """
        answer = self._ask(
            {
                "prompts": [list(prompt) for prompt in prompts],
                "max_tokens": max_tokens,
                "at_once": at_once,
                "least_s": least_s,
            }
        )
        samples = tuple(_sample(each) for each in answer["samples"])
        return Pass(samples=samples, tokens=answer["tokens"], seconds=answer["seconds"])

    def _ask(self, request: dict[str, Any]) -> Any:
        child = self._started()
        assert child.stdin
        assert child.stdout
        with suppress(BrokenPipeError):  # one that could not start has said why
            print(json.dumps(request), file=child.stdin, flush=True)
        try:
            answer = json.loads(child.stdout.readline())
        except ValueError:
            raise StartupError(f"the contender {self._name} died") from None
        if "error" in answer:
            raise StartupError(answer["error"])
        return answer

    def _started(self) -> subprocess.Popen[str]:
        if self._child is None:
            command = [*program(self._name, self._loading), self._name]
            self._child = subprocess.Popen(
                tethered([*command, json.dumps(asdict(self._loading))]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
                env={**os.environ, **OFFLINE},
            )
        return self._child


def _sample(answer: Any) -> Sample:
    return Sample(
        ids=tuple(answer["ids"]),
        tokens=answer["tokens"],
        seconds=answer["seconds"],
        prompt_tokens=answer["prompt_tokens"],
        cached_tokens=answer["cached_tokens"],
    )


def program(name: str, loading: Loading) -> list[str]:
    """Return what runs a contender."""
    if name in CONTENDERS:
        return [sys.executable, "-P", "-m", "bench.contenders.contender"]
    python = beside(loading.vllm)
    assert python, "see bench.plan.lacks"
    return [str(python), "-P", str(VLLM)]


def beside(program: str) -> Path | None:
    """Return the Python of the environment that a program is in; None where there is none."""
    found = shutil.which(program)
    python = Path(found).resolve().with_name("python") if found else None
    return python if python and python.exists() else None


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
        found = engine.crowd(**request) if "prompts" in request else engine.generate(**request)
        print(json.dumps(asdict(found)), file=answers, flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m bench.contenders.contender NAME LOADING_AS_JSON")
    logs.configure("bench", "warning")  # with why kernels are left out
    serve(sys.argv[1], Loading(**json.loads(sys.argv[2])))
