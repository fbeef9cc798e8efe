"""Contenders that run in a process of their own, so that none disturbs another's threads.

    python -m bench.contender transformers MODEL DTYPE THREADS

reads one request a line, `{"prompt_ids": [...], "max_tokens": N}`, and answers each with
`{"ids": [...], "seconds": S}`, the time from the first new token to the last. Between requests
it sleeps.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from common.errors import StartupError
from launcher.process import tethered

CONTENDERS = {
    "transformers": "bench.reference:Transformers",
    "engine": "bench.inprocess:InProcess",
}


class Engine(Protocol):
    """What a contender must do."""

    def generate(self, prompt_ids: list[int], max_tokens: int) -> tuple[list[int], float]:
        """Decode greedily; return the new ids and the seconds from the first to the last."""


class Contender:
    """A contender's process, as a context manager.

    Args:
        name: One of `CONTENDERS`.
        model: Model directory.
        dtype: torch dtype of the weights, or auto.
        threads: CPU threads.
    """

    def __init__(self, name: str, model: str, dtype: str, threads: int) -> None:
        self._name = name
        flags = [name, model, dtype, str(threads)]
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
        self._child.kill()
        self._child.communicate()

    def generate(self, prompt_ids: Sequence[int], max_tokens: int) -> tuple[list[int], float]:
        """Have it decode greedily; see `Engine.generate`.

        Raises:
            StartupError: The process died; its own words are on standard error.
        """
        assert self._child.stdin
        assert self._child.stdout
        request = {"prompt_ids": list(prompt_ids), "max_tokens": max_tokens}
        try:
            print(json.dumps(request), file=self._child.stdin, flush=True)
            answer = json.loads(self._child.stdout.readline())
        except (BrokenPipeError, ValueError):
            raise StartupError(f"the contender {self._name} died") from None
        return answer["ids"], answer["seconds"]


def serve(name: str, model: str, dtype: str, threads: int) -> None:
    """Answer requests until standard input ends."""
    # Only our answers may go to standard output; libraries print where they like.
    answers, sys.stdout = sys.stdout, sys.stderr
    module, cls = CONTENDERS[name].split(":")
    engine: Engine = getattr(importlib.import_module(module), cls)(model, dtype, threads)
    for line in sys.stdin:
        request = json.loads(line)
        ids, seconds = engine.generate(request["prompt_ids"], request["max_tokens"])
        print(json.dumps({"ids": ids, "seconds": seconds}), file=answers, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
