"""llama.cpp's server as a contender: the same weights on the same cores, by its own speculation.

Where weights are rounded, they are by its own format of 8 bits.

The program is the user's own, such as `llama-server` built with `cmake -DGGML_NATIVE=ON`. What is
measured is what it says itself: tokens after the first, and the time from the first to the last
inside the server, so that HTTP costs it nothing.
"""

from __future__ import annotations

import atexit
import http.client
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.contenders import gguf_file
from bench.contenders.contender import Loading
from bench.crowd import Note, crowd
from bench.measurement import Pass, Sample
from bench.ports import free_ports
from bench.unseen import Unseen
from common.errors import StartupError
from launcher.process import tethered

START_S = 300.0
TICK_S = 0.05
ANSWER_S = 5.0
TEXT_S = 600.0
CONTEXT_TOKENS = 8192
"""The bench's prompts are short; a cache of a model's own length may be larger than the memory."""
SHARE_TOKENS = 2048
"""The same of each text, where there are several at a time."""


class LlamaServer:
    """A contender: plain decoding.

    Args:
        loading: Which model.

    Raises:
        StartupError: The server did not start; with its last words.
    """

    def __init__(self, loading: Loading) -> None:
        self._loading, self._port = loading, 0
        self._unseen = Unseen(loading.marks)
        self._directory = tempfile.TemporaryDirectory(prefix="paceline-llama-")
        self._child: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)
        try:
            self._child = self._started(loading)
            self._wait(self._child)
            for file in Path(self._directory.name).glob("*.gguf"):
                file.unlink()  # the server has them open, and nobody is left with gigabytes
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the server, and remove its files."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        self._directory.cleanup()

    def generate(self, prompt_ids: list[int], max_tokens: int, seed: int) -> Sample:
        """Decode greedily, or draw with this seed."""
        sample, _ = self._text(prompt_ids, max_tokens, seed)
        return sample

    def crowd(
        self, prompts: list[list[int]], max_tokens: int, at_once: int, least_s: float
    ) -> Pass:
        """Decode every prompt at least once, see `bench.crowd`.

        A text comes whole, when it is done; by the server's clock its tokens were made one after
        the other from the first to the last.
        """

        def write(seed: int, note: Note) -> Sample:
            sample, first_s = self._text(self._unseen(prompts[seed]), max_tokens, seed)
            note(first_s, 1)
            for number in range(1, sample.tokens + 1):
                note(first_s + sample.seconds * number / sample.tokens, 1)
            return sample

        return crowd(write, len(prompts), at_once, least_s)

    def _text(self, prompt_ids: list[int], max_tokens: int, seed: int) -> tuple[Sample, float]:
        """A text, and when its first token was there."""
        done = self._ask(
            "POST",
            "/completion",
            {
                "prompt": prompt_ids,
                "n_predict": max_tokens,
                "temperature": self._loading.temperature,
                "samplers": ["temperature"],  # its own defaults cut
                "seed": seed,
                "return_tokens": True,
            },
            TEXT_S,
        )
        took = done["timings"]
        seconds = took["predicted_ms"] / 1e3
        cached = took.get("cache_n")  # older servers do not say
        sample = Sample(
            ids=tuple(done["tokens"]),
            tokens=took["predicted_n"] - 1,
            seconds=seconds,
            prompt_tokens=len(prompt_ids) if cached is not None else 0,
            cached_tokens=cached or 0,
        )
        return sample, time.perf_counter() - seconds

    def _started(self, loading: Loading) -> subprocess.Popen[bytes]:
        threads, texts = str(loading.threads), loading.at_once
        context = texts * SHARE_TOKENS if texts > 1 else CONTEXT_TOKENS
        target = self._written("target", loading.target, loading.quantize)
        speculation = self._speculation(loading, threads)
        (self._port,) = free_ports(1)  # last: others get ports while models are written
        command = [
            *(loading.llama_server, "--model", target),
            *("--host", "127.0.0.1", "--port", str(self._port)),
            *("--parallel", str(texts), "--ctx-size", str(context)),
            *("--threads", threads, "--threads-batch", threads),
            *(("--device", "none") if loading.device == "cpu" else ()),
            *speculation,
        ]
        with Path(self._file("server.log")).open("wb") as log:
            return subprocess.Popen(
                tethered(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _speculation(self, loading: Loading, threads: str) -> tuple[str, ...]:
        """Flags of the server that have it guess."""
        return ()

    def _written(self, role: str, model: str, quantize: str) -> str:
        """A model as a file of the server's."""
        path = self._file(f"{role}.gguf")
        gguf_file.write(Path(model), self._loading.dtype, Path(path), quantize=quantize)
        return path

    def _file(self, name: str) -> str:
        return str(Path(self._directory.name) / name)

    def _wait(self, child: subprocess.Popen[bytes]) -> None:
        """Waits until the server has loaded its models."""
        until = time.monotonic() + START_S
        while time.monotonic() < until and child.poll() is None:
            try:
                self._ask("GET", "/health", None, ANSWER_S)
            except (OSError, http.client.HTTPException):
                time.sleep(TICK_S)
            else:
                return
        said = Path(self._file("server.log")).read_text("utf-8", errors="replace").splitlines()
        raise StartupError(f"llama-server did not start: {' / '.join(said[-3:])}")

    def _ask(self, how: str, what: str, body: Any, timeout_s: float) -> Any:
        """What the server answers.

        Raises:
            OSError: It does not listen, or does not answer in time.
            http.client.HTTPException: It refuses, as while it loads a model.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=timeout_s)
        try:
            connection.request(how, what, json.dumps(body) if body else None)
            answer = connection.getresponse()
            found = json.loads(answer.read())
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise http.client.HTTPException(f"llama-server: {found}")
        return found


class LlamaDrafting(LlamaServer):
    """With the draft model, in drafts as long as its server makes them where nothing is said."""

    def _speculation(self, loading: Loading, threads: str) -> tuple[str, ...]:
        """Flags of the server that have it guess."""
        if loading.draft is None:
            raise StartupError("llama.cpp's drafting needs a draft model")
        draft = self._written("draft", loading.draft, loading.draft_quantize)
        return (
            *("--spec-type", "draft-simple", "--model-draft", draft, "--threads-draft", threads),
            *(("--device-draft", "none") if loading.device == "cpu" else ()),
        )
