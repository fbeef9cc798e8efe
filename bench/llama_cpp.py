"""llama.cpp's server as a contender: the same weights on the same cores, by its own speculation.

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

from bench import gguf_file
from bench.contender import Loading
from bench.measurement import Sample
from bench.ports import free_ports
from common.errors import StartupError
from launcher.process import tethered

START_S = 300.0
TICK_S = 0.05
ANSWER_S = 5.0
TEXT_S = 600.0
CONTEXT_TOKENS = 8192
"""The bench's prompts are short; a cache of a model's own length may be larger than the memory."""


class LlamaServer:
    """A contender, see `bench.contender`: plain decoding.

    Args:
        loading: Which model.

    Raises:
        StartupError: The server did not start; with its last words.
    """

    def __init__(self, loading: Loading) -> None:
        self._temperature, self._port = loading.temperature, 0
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
        done = self._ask(
            "POST",
            "/completion",
            {
                "prompt": prompt_ids,
                "n_predict": max_tokens,
                "temperature": self._temperature,
                "samplers": ["temperature"],  # its own defaults cut
                "seed": seed,
                "cache_prompt": False,
                "return_tokens": True,
            },
            TEXT_S,
        )
        timings = done["timings"]
        return Sample(
            ids=tuple(done["tokens"]),
            tokens=timings["predicted_n"] - 1,
            seconds=timings["predicted_ms"] / 1e3,
        )

    def _started(self, loading: Loading) -> subprocess.Popen[bytes]:
        threads = str(loading.threads)
        target = self._written("target", loading.target, loading)
        speculation = self._speculation(loading, threads)
        (self._port,) = free_ports(1)  # last: others get ports while models are written
        command = [
            *(loading.llama_server, "--model", target),
            *("--host", "127.0.0.1", "--port", str(self._port)),
            *("--parallel", "1", "--ctx-size", str(CONTEXT_TOKENS)),
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

    def _written(self, role: str, model: str, loading: Loading) -> str:
        """A model as a file of the server's."""
        path = self._file(f"{role}.gguf")
        gguf_file.write(Path(model), loading.dtype, Path(path))
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
        draft = self._written("draft", loading.draft, loading)
        return (
            *("--spec-type", "draft-simple", "--model-draft", draft, "--threads-draft", threads),
            *(("--device-draft", "none") if loading.device == "cpu" else ()),
        )
