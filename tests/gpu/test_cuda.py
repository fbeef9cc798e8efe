"""On CUDA, too: the text of `transformers`, one text for all methods, bits of a row its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from common.model import noise
from common.model.kv_cache import KvLease, LayerShape
from common.model.loader import Dtype, load
from common.model.quantized import Quantize
from common.model.row import Row
from common.model.runner import Runner
from common.model.sampling import sample
from common.model.segment import Segment
from common.sampling_params import SamplingParams
from tests import tiny_models
from tests.inprocess import Pair, runner
from tests.tiny_models import VOCAB
from tests.unit.common.model import rolls

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

NEW_TOKENS = 20
LENGTH = 100
SEEDS = (0, 7, 2**63 + 5)
POSITIONS = (0, 31, 2**33)


def _left_out(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Why kernels were left out, or passes could not be captured."""
    return [each.__dict__["reason"] for each in caplog.records if "reason" in each.__dict__]


def _ids(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (length,), generator=generator).tolist()


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gemma4_text", "phi", "mixtral", "gpt_oss"])
def test_greedy_text_equals_transformers(kind: str, tmp_path: Path) -> None:
    directory = tiny_models.save(kind, tmp_path)
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).to("cuda")
    pair = Pair.make(runner(directory, device="cuda"))
    for length in (1, 63, 150):
        prompt = _ids(length)
        out = reference.generate(
            torch.tensor([prompt], device="cuda"),
            attention_mask=torch.ones(1, length, dtype=torch.int64, device="cuda"),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert pair.generate(prompt, NEW_TOKENS) == out[0, length:].tolist()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_drafts_do_not_change_the_text(dtype: Dtype, tmp_path: Path) -> None:
    directory = tiny_models.save("llama", tmp_path / "target")
    other = tiny_models.save("llama", tmp_path / "other", seed=4)
    target = runner(directory, dtype, device="cuda")
    for drafter in (directory, other):
        drafted = Pair.make(target, runner(drafter, dtype, device="cuda"))
        for seed in range(3):
            sampling = SamplingParams(temperature=0.9, seed=seed)
            prompt = _ids(40, seed)
            plain = Pair.make(target).generate(prompt, 60, sampling=sampling)
            assert drafted.generate(prompt, 60, sampling=sampling, draft_tokens=4) == plain
    target.pool.blocks.check()
    assert target.pool.blocks.held == 0


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_rounded_weights_have_one_text_too(quantize: Quantize, tmp_path: Path) -> None:
    wide = {"hidden_size": 64, "intermediate_size": 96}
    directory = tiny_models.save("llama", tmp_path / "target", **wide)
    target = runner(directory, "bfloat16", device="cuda", quantize=quantize)
    drafter = runner(directory, "bfloat16", device="cuda")
    assert target.loaded.kernels.endswith(quantize)
    prompt = _ids(40)
    for seed in range(3):
        sampling = SamplingParams(temperature=0.9, seed=seed)
        plain = Pair.make(target).generate(prompt, 60, sampling=sampling)
        drafted = Pair.make(target, drafter)
        assert drafted.generate(prompt, 60, sampling=sampling, draft_tokens=4) == plain


@pytest.mark.parametrize(
    "kind",
    [
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma2",
        "olmo2",
        "mixtral",
        "glm4_moe_lite",
        "gpt_oss",
    ],
)
def test_models_of_llamas_shape_run_by_kernels(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And compute what the CPU does."""
    directory = tiny_models.save(kind, tmp_path)
    target, reference = runner(directory, device="cuda"), runner(directory)
    assert target.loaded.kernels.startswith("cuda"), _left_out(caplog)
    expected = _logits(reference, [_ids(LENGTH)], 50)[0]
    for _ in range(3):  # as they are, captured, replayed
        assert (_logits(target, [_ids(LENGTH)], 10)[0].cpu() - expected).abs().max() < 1e-3
    assert not _left_out(caplog)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gemma4_text", "phi"])
def test_what_enters_layers_is_that_of_the_processor(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Through graphs, too; and logits have the bits they have without."""
    directory, taps = tiny_models.save(kind, tmp_path), (0, 1, 2)
    here, there = (load(str(directory), dtype="float32", device=on) for on in ("cuda", "cpu"))
    target = Runner(here, kv_bytes=1 << 22, taps=taps, head_layers=[LayerShape(2, 16, 16)])
    reference = Runner(there, kv_bytes=1 << 22, taps=taps)
    plain = runner(directory, device="cuda")
    for seed, rows in enumerate((7, 7, 7, 3 * LENGTH)):  # as it is, captured, replayed; no graph
        ids, outputs = _ids(rows, seed), []
        for each in (target, reference, plain):
            slots = each.pool.lease(rows).slots
            outputs.append(each.forward([Segment(ids, 0, slots, wanted=[0])]))
        features, expected = (output.features for output in outputs[:2])
        assert features is not None
        assert expected is not None
        assert features.shape == expected.shape == (rows, len(taps) * 48)
        assert (features.cpu() - expected).abs().max() < 1e-3
        assert torch.equal(outputs[0].logits, outputs[2].logits)
        assert outputs[2].features is None
    assert kind != "llama" or not _left_out(caplog)


def test_passes_follow_each_other_on_the_device(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = runner(tiny_models.save("llama", tmp_path), device="cuda")
    assert target.tells_of_each, _left_out(caplog)
    for seed in range(3):  # as they are, captured, replayed
        rolls.is_step_after_step(target, 4)
        rolls.is_step_after_step_behind_a_tree(target, 4)
        rolls.with_draws_is_step_after_step(target, 4)
        rolls.with_changes_is_step_after_step(target, 4, seed)
        rolls.ends_where_rows_are_too_unlikely(target, seed)
        rolls.ends_with_texts(target, seed)
    assert rolls.passes_beside_news(target, rung=False) == 3
    assert rolls.passes_beside_news(target, rung=True) == 1
    assert not _left_out(caplog)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_pass_is_launched_when_the_one_before_is_done(kind: str, tmp_path: Path) -> None:
    target = runner(tiny_models.save(kind, tmp_path), device="cuda")
    lease = KvLease(target.pool.blocks)
    assert lease.reserve(LENGTH)
    before = None
    for start in range(0, LENGTH, 10):
        target.forward([Segment(_ids(10), start, lease.slots, wanted=[])])
        assert before is None or before.query()
        before = torch.cuda.Event()
        before.record()
    lease.release()


def test_kernels_draw_what_the_cpu_does() -> None:
    """But for a draw in a thousand, which bits decide."""
    from common.model.cuda.probe import fault_of_draws

    assert fault_of_draws(torch.device("cuda")) == ""
    ways = [{}, {"top_p": 0.9}, {"top_k": 40}, {"min_p": 0.02}, {"top_k": 20, "top_p": 0.8}]
    rows = [Row(SamplingParams(temperature=0.8, seed=i, **ways[i % 5]), i) for i in range(2000)]
    logits = torch.randn(len(rows), 5000, generator=torch.Generator().manual_seed(0)) * 3
    here, there = sample(logits, rows), sample(logits.to("cuda"), rows).cpu()
    assert (here != there).sum() <= 2


def _logits(target: Runner, texts: Sequence[Sequence[int]], chunk: int) -> list[Tensor]:
    """Logits of every row of some texts, run side by side in chunks of so many tokens."""
    length = len(texts[0])
    leases = [KvLease(target.pool.blocks) for _ in texts]
    for lease in leases:
        assert lease.reserve(length)
    passes = []
    for start in range(0, length, chunk):
        segments = []
        for ids, lease in zip(texts, leases, strict=True):
            rows = ids[start : start + chunk]
            segments.append(Segment(rows, start, lease.slots, wanted=range(len(rows))))
        logits = target.forward(segments).logits
        passes.append(logits.unflatten(0, (len(texts), -1)))  # [T, chunk, V]
    for lease in leases:
        lease.release()
    return list(torch.cat(passes, dim=1))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["llama", "gemma2", "gemma4_text", "phi", "mixtral", "gpt_oss"])
def test_logits_have_the_same_bits_alone_and_in_a_batch(
    kind: str, dtype: Dtype, tmp_path: Path
) -> None:
    """In passes of as many rows as full ones have, and far behind what the runner tries."""
    directory = tiny_models.save(kind, tmp_path, max_position_embeddings=1024)
    target = runner(directory, dtype, device="cuda")
    texts = [_ids(600, seed) for seed in range(4)]
    alone = [_logits(target, [ids], chunk=1)[0] for ids in texts]
    for chunk in (1, 5, 33, 64):
        for row, expected in zip(_logits(target, texts, chunk), alone, strict=True):
            assert torch.equal(row, expected)


@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_threads_of_the_host_make_no_other_model(kind: str, tmp_path: Path) -> None:
    directory = tiny_models.save(kind, tmp_path)
    before = torch.get_num_threads()
    prints = set()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        prints.add(runner(directory, device="cuda").fingerprint)
    torch.set_num_threads(before)
    assert len(prints) == 1


def test_noise_has_the_words_of_the_cpu() -> None:
    """That is, values as close as logarithms are; those of neighbouring words are 6e-10 apart."""
    here = noise.gumbel_rows(SEEDS, POSITIONS, VOCAB, "cpu")
    there = noise.gumbel_rows(SEEDS, POSITIONS, VOCAB, "cuda")
    assert there.device.type == "cuda"
    assert (there.cpu() - here).abs().max() < 1e-14
    some = torch.arange(VOCAB, device="cuda").expand(len(SEEDS), -1)
    assert torch.equal(noise.gumbel(SEEDS, POSITIONS, some).cpu(), here)
