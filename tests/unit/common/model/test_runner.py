"""How long a text may be, what is said where that is not what was asked for, and what attends."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from common.errors import ModelError
from common.model import runner as module
from common.model.attention import without_plans
from common.model.cuda.pace import Pace
from common.model.kernels import Kernels
from common.model.kv_cache import KvLease
from common.model.loader import load
from common.model.runner import Runner
from common.model.segment import Segment
from tests import tiny_models

_ENOUGH = 8 << 20
"""Bytes of a cache that holds more than the model's length."""


@pytest.mark.parametrize(
    ("asked", "kv_bytes", "length", "said"),
    [
        (None, _ENOUGH, tiny_models.MAX_LEN, []),
        (100, _ENOUGH, 100, []),
        (
            2 * tiny_models.MAX_LEN,
            _ENOUGH,
            tiny_models.MAX_LEN,
            ["the model is made for shorter texts than were asked for"],
        ),
        (None, 40_000, 80, ["the cache holds less than the model's length"]),
    ],
)
def test_a_text_is_as_long_as_model_cache_and_caller_allow(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    asked: int | None,
    kv_bytes: int,
    length: int,
    said: list[str],
) -> None:
    loaded = load(str(tiny_models.save("llama", tmp_path)), device="cpu")
    caplog.clear()
    runner = Runner(loaded, kv_bytes=kv_bytes, max_len=asked)
    assert runner.max_len == length
    assert caplog.messages == said


@pytest.mark.parametrize("kind", ["llama", "mixtral"])
@pytest.mark.parametrize(("made_for", "asked"), [(-5, None), (0, None), (1, None), (512, 1)])
def test_texts_of_one_token_are_no_texts(
    kind: str, made_for: int, asked: int | None, tmp_path: Path
) -> None:
    loaded = load(str(tiny_models.save(kind, tmp_path)), device="cpu")
    loaded = replace(loaded, max_len=made_for)
    with pytest.raises(ModelError, match=rf"texts of {asked or made_for} tokens: 2 is"):
        Runner(loaded, kv_bytes=_ENOUGH, max_len=asked)


@pytest.mark.parametrize(
    ("kind", "kernels"), [("llama", "auto"), ("llama", "torch"), ("gpt_neox", "auto")]
)
def test_the_length_of_a_model_takes_no_memory(kind: str, kernels: Kernels, tmp_path: Path) -> None:
    """Angles are there of what the cache holds, also of a larger one that follows."""
    usual = load(str(tiny_models.save(kind, tmp_path)), device="cpu", kernels=kernels)
    expected = _logits(Runner(usual, kv_bytes=_ENOUGH), 150)
    config = tmp_path / "config.json"
    settings = json.loads(config.read_text()) | {"max_position_embeddings": 10**30}
    config.write_text(json.dumps(settings))
    endless = load(str(tmp_path), device="cpu", kernels=kernels)
    for kv_bytes in (40_000, 60_000):
        runner = Runner(endless, kv_bytes=kv_bytes)
        assert torch.equal(_logits(runner, runner.max_len), expected[: runner.max_len])


def _logits(runner: Runner, tokens: int) -> Tensor:
    """Of a text of so many."""
    slots = runner.pool.lease(tokens).slots
    return runner.forward([Segment(range(tokens), 0, slots, wanted=range(tokens))]).logits


def test_a_cache_without_room_for_a_block_is_refused(tmp_path: Path) -> None:
    loaded = load(str(tiny_models.save("llama", tmp_path)), device="cpu")
    with pytest.raises(ModelError, match="a cache of 1000 bytes holds no block; two take"):
        Runner(loaded, kv_bytes=1000)


def test_a_cache_that_memory_does_not_hold_is_refused(tmp_path: Path) -> None:
    loaded = load(str(tiny_models.save("llama", tmp_path)), device="cpu")
    for kv_bytes in (9 * 10**17, 10**30):
        refusal = rf"no room for a cache of {kv_bytes} bytes: .* \(engine\.kv_bytes.* smaller\)"
        with pytest.raises(ModelError, match=refusal):
            Runner(loaded, kv_bytes=kv_bytes)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_first_pass_that_memory_does_not_hold_says_so(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    loaded = load(str(tiny_models.save(kind, tmp_path / kind)), device="cpu")
    monkeypatch.setattr(Runner, "forward", forward)
    with pytest.raises(ModelError, match=rf"^no room for a pass of {kind}: CUDA out of memory"):
        Runner(loaded, kv_bytes=_ENOUGH)


def test_on_gpus_a_pass_is_launched_when_the_one_before_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing is read of it, as of the parts of a long prompt; it is laid out before."""
    runner = Runner(load(str(tiny_models.save("gpt2", tmp_path)), device="cpu"), kv_bytes=_ENOUGH)
    assert not isinstance(runner._pace, Pace), "a processor is never behind"
    done: list[str] = []

    class Event:
        def synchronize(self) -> None:
            done.append("wait")

        def record(self, stream: str) -> None:
            done.append(f"mark {stream}")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"its stream of {device}")
    runner._pace = Pace(torch.device("cuda:1"))
    run, lay_out = runner._forward, module.build_batch
    assert run is not None
    launch = type(run).__call__
    monkeypatch.setattr(
        module,
        "build_batch",
        lambda *args, **named: done.append("lay out") or lay_out(*args, **named),
    )
    monkeypatch.setattr(type(run), "__call__", lambda *args: done.append("run") or launch(*args))
    lease = KvLease(runner.pool.blocks)
    assert lease.reserve(4)
    for start in (0, 2):
        runner.forward([Segment([5, 6], start, lease.slots, wanted=[])])
    assert done == 2 * ["lay out", "wait", "run", "mark its stream of cuda:1"]


def test_a_model_whose_passes_fail_is_refused_by_name(tmp_path: Path) -> None:
    """As with more experts asked for than there are: what torch says of it comes along."""
    directory = tiny_models.save("mixtral", tmp_path / "few", num_experts_per_tok=8)
    loaded = load(str(directory), device="cpu")
    with pytest.raises(ModelError, match=r"few cannot be served .* first pass fails: .* range"):
        Runner(loaded, kv_bytes=_ENOUGH)


def test_on_gpus_torch_attends_without_cudnn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enabled: list[bool] = []
    attend = functional.scaled_dot_product_attention

    def watched(*args: Any, **named: Any) -> Tensor:
        enabled.append(torch.backends.cuda.cudnn_sdp_enabled())
        return attend(*args, **named)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", watched)
    monkeypatch.setattr(module, "without_plans", lambda _: without_plans(torch.device("cuda")))
    before = torch.backends.cuda.cudnn_sdp_enabled()
    Runner(load(str(tiny_models.save("phi", tmp_path)), device="cpu"), kv_bytes=_ENOUGH)
    assert enabled
    assert not any(enabled)
    assert torch.backends.cuda.cudnn_sdp_enabled() is before, "others' attention is theirs"
