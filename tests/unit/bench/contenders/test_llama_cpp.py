"""llama.cpp as a contender: its own server where there is one, and a scripted one everywhere.

No package index has its program ready to run, so what is tried everywhere is our half.
"""

from __future__ import annotations

import shutil
import sys
from contextlib import closing
from pathlib import Path

import pytest

from bench.contenders.contender import Contender, Loading
from bench.contenders.llama_cpp import LlamaDrafting, LlamaServer
from common.errors import StartupError
from tests import tiny_models

PROMPT = [5, 60, 7, 110, 9, 60, 7]

SCRIPTED = """#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
import http.server, json, sys

asked = 0

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global asked
        asked += 1
        self.answer(503 if asked < 3 else 200, {{"error": "loading"}})

    def do_POST(self):
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert said["return_tokens"]
        ids = said["prompt"][::-1][: said["n_predict"]]
        took = {{"predicted_n": len(ids), "predicted_ms": 500.0, "cache_n": 2}}
        self.answer(200, {{"tokens": ids, "timings": took}})

    def answer(self, code, body):
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

if "broken" in sys.argv[0]:
    sys.exit("one\\ntwo\\nthree\\nno model")
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
context, texts = int(flags["--ctx-size"]), int(flags["--parallel"])
assert context == {{1: 8192, 2: 2 * 2048}}[texts]
models = [open(flags[name], "rb").read() for name in ("--model", "--model-draft") if name in flags]
assert all(model.startswith(b"GGUF") for model in models)
assert len(set(models)) == len(models)
address = flags["--host"], int(flags["--port"])
http.server.HTTPServer(address, Handler).serve_forever()
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(tiny_models.save("llama", tmp_path / "model"))


def _scripted(path: Path) -> str:
    path.write_text(SCRIPTED.format(python=sys.executable), encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_it_is_asked_for_ids_and_timed_by_its_own_clock(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = _scripted(tmp_path / "server")
    draft = str(tiny_models.save("llama", tmp_path / "other" / "model", seed=1))
    loading = Loading(target=model, draft=draft, llama_server=program, device="cpu")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Contender("llama-draft", loading) as contender:
        sample = contender.generate(PROMPT, 5)
        assert not list(tmp_path.glob("paceline-llama-*/*.gguf")), "the server has them"
    assert sample.ids == (7, 60, 9, 110, 7)
    assert (sample.tokens, sample.seconds) == (4, 0.5)
    assert not list(tmp_path.glob("paceline-llama-*"))


def test_several_texts_share_a_server_and_its_clock(model: str, tmp_path: Path) -> None:
    program = _scripted(tmp_path / "server")
    loading = Loading(target=model, llama_server=program, device="cpu", at_once=2)
    prompts = [PROMPT, PROMPT[:4], PROMPT[1:]]
    with Contender("llama", loading) as contender:
        done = contender.crowd(prompts, 5, at_once=2, least_s=0)
    assert [list(sample.ids) for sample in done.samples] == [ids[::-1][:5] for ids in prompts]
    assert [sample.tokens for sample in done.samples] == [4, 3, 4]
    assert 0 < done.tokens < sum(len(sample.ids) for sample in done.samples)
    assert 0.5 <= done.seconds < 5, "of the server's half a second a text"
    assert [sample.prompt_tokens for sample in done.samples] == [7, 4, 6]
    assert [sample.cached_tokens for sample in done.samples] == [2, 2, 2]


def test_several_texts_may_be_of_prompts_nobody_asked(model: str, tmp_path: Path) -> None:
    program = _scripted(tmp_path / "server")
    marks = (20, 30)
    loading = Loading(target=model, llama_server=program, device="cpu", marks=marks)
    with closing(LlamaServer(loading)) as server:
        done = server.crowd([PROMPT, PROMPT[:4]], 9, at_once=1, least_s=0)
    assert [sample.ids[::-1] for sample in done.samples] == [
        (5, 20, 20, *PROMPT[1:]),
        (5, 20, 30, *PROMPT[1:4]),
    ]


@pytest.mark.parametrize(("target", "draft"), [("int8", "none"), ("none", "int8")])
def test_each_model_is_rounded_as_it_is_asked_for(
    target: str, draft: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounded: dict[str, str] = {}

    def write(model: Path, dtype: str, path: Path, *, quantize: str) -> None:
        rounded[model.name] = quantize
        path.write_bytes(b"GGUF" + model.name.encode())

    monkeypatch.setattr("bench.contenders.gguf_file.write", write)
    program = _scripted(tmp_path / "server")
    roles = {"target": "target", "draft": "draft", "llama_server": program}
    LlamaDrafting(Loading(**roles, quantize=target, draft_quantize=draft)).close()
    assert rounded == {"target": target, "draft": draft}


def test_one_that_does_not_start_says_its_last_words(model: str, tmp_path: Path) -> None:
    program = _scripted(tmp_path / "broken")
    with pytest.raises(StartupError, match="did not start: two / three / no model"):
        LlamaServer(Loading(target=model, llama_server=program))


def test_drafting_needs_a_draft(model: str, tmp_path: Path) -> None:
    program = _scripted(tmp_path / "server")
    with pytest.raises(StartupError, match="needs a draft model"):
        LlamaDrafting(Loading(target=model, llama_server=program))


@pytest.mark.skipif(shutil.which("llama-server") is None, reason="llama-server is not installed")
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_it_writes_what_transformers_does(kind: str, tmp_path: Path) -> None:
    window = {"use_sliding_window": False, "layer_types": ["full_attention"] * 2}
    directory = tiny_models.save(kind, tmp_path, **(window if kind == "qwen2" else {}))
    loading = Loading(target=str(directory), draft=str(directory), dtype="float32")
    with (
        Contender("transformers", loading) as reference,
        Contender("llama", loading) as plain,
        Contender("llama-draft", loading) as drafting,
    ):
        expected, *found = (one.generate(PROMPT, 12) for one in (reference, plain, drafting))
    assert [sample.ids for sample in found] == [expected.ids] * 2
    assert [sample.tokens for sample in found] == [len(expected.ids) - 1] * 2
