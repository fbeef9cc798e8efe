"""vLLM as a contender: its own engine where there is one, and a scripted one everywhere.

It wants an environment of its own, so that what is tried everywhere is our half.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.contenders.contender import Contender, Loading, beside
from bench.unseen import Unseen
from common.errors import StartupError
from tests import tiny_models

PROMPT = [5, 60, 7, 110, 9, 60, 7]

SCRIPTED = '''
import os
from types import SimpleNamespace

print("to be ignored", flush=True)
os.write(1, b"this, too\\n")
assert "libiomp5.so" in os.environ["LD_PRELOAD"]
assert os.environ["VLLM_CPU_OMP_THREADS_BIND"]
TokensPrompt = SamplingParams = SimpleNamespace


class LLM:
    """Repeats prompts backwards: two tokens in a text's first step, then one a step."""

    def __init__(self, *, model, dtype, speculative_config, max_num_seqs, **_):
        assert dtype == "float32", "as the model says"
        if "broken" in model:
            raise ValueError("no model")
        method = (speculative_config or {}).get("method")
        assert (method == "draft_model") == ("model" in (speculative_config or {}))
        self.llm_engine = self
        self.most, self.running, self.prompts = max_num_seqs, {}, {}

    def add_request(self, name, prompt, sampling):
        assert not sampling.detokenize and sampling.output_kind == "delta"
        assert len(self.running) < self.most
        self.running[name] = prompt.prompt_token_ids[::-1][: sampling.max_tokens], 0
        self.prompts[name] = prompt.prompt_token_ids

    def step(self):
        brought = []
        for name, (ids, done) in list(self.running.items()):
            until = min(done + (1 if done else 2), len(ids))
            ended = until == len(ids)
            text = SimpleNamespace(token_ids=ids[done:until])
            asked = {"prompt_token_ids": self.prompts[name], "num_cached_tokens": 2}
            asked |= {"request_id": name, "outputs": [text], "finished": ended}
            brought.append(SimpleNamespace(**asked))
            self.running[name] = ids, until
            if ended:
                del self.running[name]
        return brought
'''


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(tiny_models.save("llama", tmp_path / "model"))


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The program of an environment in which vLLM is scripted."""
    environment, package = tmp_path / "environment", tmp_path / "packages" / "vllm"
    (environment / "bin").mkdir(parents=True)
    (environment / "lib").mkdir()
    (environment / "lib" / "libiomp5.so").touch()
    (environment / "bin" / "python").symlink_to(sys.executable)
    home = Path(sys._base_executable).parent  # type: ignore[attr-defined]
    (environment / "pyvenv.cfg").write_text(f"home = {home}\n", "utf-8")
    program = environment / "bin" / "vllm"
    program.touch(0o755)
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(SCRIPTED, "utf-8")
    kinds = 'import types\nRequestOutputKind = types.SimpleNamespace(DELTA="delta")\n'
    (package / "sampling_params.py").write_text(kinds, "utf-8")
    where = 'import types\ncurrent_platform = types.SimpleNamespace(device_type="cpu")\n'
    (package / "platforms.py").write_text(where, "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    return str(program)


@pytest.mark.parametrize("name", ["vllm", "vllm-draft", "vllm-ngram"])
def test_it_is_stepped_in_its_own_environment(name: str, model: str, vllm: str) -> None:
    with Contender(name, Loading(target=model, draft=model, vllm=vllm)) as contender:
        sample = contender.generate(PROMPT, 5)
    assert sample.ids == (7, 60, 9, 110, 7)
    assert sample.tokens == 3, "the clock starts with the first step's two"
    assert sample.seconds > 0


def test_it_takes_as_many_texts_as_it_is_to(model: str, vllm: str) -> None:
    prompts = [PROMPT, PROMPT[:4], PROMPT[1:]]
    with Contender("vllm", Loading(target=model, vllm=vllm, at_once=2)) as contender:
        done = contender.crowd(prompts, 5, at_once=2, least_s=0)
        longer = contender.crowd(prompts, 5, at_once=2, least_s=0.1)
    assert [list(sample.ids) for sample in done.samples] == [ids[::-1][:5] for ids in prompts]
    assert [sample.tokens for sample in done.samples] == [3, 2, 3]
    # Of the first two, whose first step brings four; the third's last come when only it is left.
    assert done.tokens == 3 + 2 + 2
    assert done.samples == tuple(
        replace(sample, seconds=one.seconds)
        for sample, one in zip(longer.samples, done.samples, strict=True)
    )
    assert [sample.prompt_tokens for sample in done.samples] == [7, 4, 6]
    assert [sample.cached_tokens for sample in done.samples] == [2, 2, 2]
    assert longer.tokens > 15
    assert 0.05 < longer.seconds < 5


def test_it_may_be_asked_what_nobody_asked(model: str, vllm: str) -> None:
    marks, prompts = (20, 30), [PROMPT, PROMPT[:4], PROMPT]
    with Contender("vllm", Loading(target=model, vllm=vllm, marks=marks)) as contender:
        done = contender.crowd(prompts, 9, at_once=1, least_s=0)
    unseen = Unseen(marks)
    assert [list(sample.ids[::-1]) for sample in done.samples] == [unseen(ids) for ids in prompts]


def test_one_that_does_not_start_says_why(tmp_path: Path, vllm: str) -> None:
    model = tiny_models.save("llama", tmp_path / "broken")
    with (
        Contender("vllm", Loading(target=str(model), vllm=vllm)) as contender,
        pytest.raises(StartupError, match="vLLM did not start: no model"),
    ):
        contender.generate(PROMPT, 5)


def test_one_for_another_device_is_an_error(model: str, vllm: str) -> None:
    loading = Loading(target=model, vllm=vllm, device="cuda")
    with (
        Contender("vllm", loading) as contender,
        pytest.raises(StartupError, match="it is built for cpu, not for cuda"),
    ):
        contender.generate(PROMPT, 5)


def test_its_python_is_beside_its_program(tmp_path: Path, vllm: str) -> None:
    assert beside(vllm) == Path(vllm).with_name("python")
    assert beside(str(tmp_path / "nowhere")) is None
    alone = tmp_path / "vllm"
    alone.touch(0o755)
    assert beside(str(alone)) is None


@pytest.mark.skipif(beside("vllm") is None, reason="vLLM is not installed")
@pytest.mark.timeout(400)  # it compiles the model
def test_it_writes_what_transformers_does(tmp_path: Path) -> None:
    directory = tiny_models.save("llama", tmp_path, head_dim=32)  # it knows few sizes
    loading = Loading(target=str(directory), draft=str(directory), dtype="float32")
    with (
        Contender("transformers", loading) as reference,
        Contender("vllm", loading) as plain,
        Contender("vllm-draft", loading) as drafting,
    ):
        expected, *found = (one.generate(PROMPT, 12) for one in (reference, plain, drafting))
    assert [sample.ids for sample in found] == [expected.ids] * 2
