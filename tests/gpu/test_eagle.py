"""An EAGLE-3 head on CUDA guesses what it does on the processor, and the text is the plain one, as
with an assistant."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from common.model.keyed_head import Behind
from common.model.loader import Dtype
from common.sampling_params import SamplingParams
from tests import tiny_models
from tests.inprocess import Pair, eagle_of, runner
from tests.tiny_models import VOCAB
from tests.unit.common.model.assistant import files as assistant_files
from tests.unit.verifier.methods import eagle_files

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

TOKENS = 40


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-3), ("bfloat16", 0.2)])
def test_guesses_are_those_of_the_processor(
    normed: bool, dtype: Dtype, most: float, tmp_path: Path
) -> None:
    """In float32 there; behind several texts, over parents that branch."""
    directory = tiny_models.save("llama", tmp_path / "target")
    files = eagle_files.write(tmp_path / "head", directory, normed=normed)
    targets = [
        runner(directory, dtype, device="cuda", eagle=files),
        runner(directory, device="cpu", eagle=files),
    ]
    draw, generator = random.Random(1), torch.Generator().manual_seed(1)
    lengths = [40, 3, 17]
    states = [torch.randn(length, 2 * 48, generator=generator) for length in lengths]
    tokens = [[draw.randrange(VOCAB) for _ in range(length)] for length in lengths]
    steps = [([0, 0, 1, 2, 2], [5, 6, 7, 8, 9]), ([0, 1, 1, 4], [3, 4, 5, 6]), ([3], [8])]
    found = []
    for target in targets:
        head = eagle_of(files, target)
        slots = [target.pool.lease(length).slots for length in lengths]
        device = target.loaded.device
        shown = [
            (each.to(device), line, where)
            for each, line, where in zip(states, tokens, slots, strict=True)
        ]
        head.write([Behind(each[:2], line[:2], 0, where) for each, line, where in shown])
        draft = head.draft([Behind(each[2:], line[2:], 2, where) for each, line, where in shown])
        logits = [draft.logits, *(draft.further(*step) for step in steps)]
        assert all(each.device.type == device.type for each in logits)
        ids, chances = head.top(logits[0], 4)
        assert len(ids) == len(chances) == len(lengths)
        found.append([each.cpu() for each in logits])
    for one, other in zip(*found, strict=True):
        assert one.shape == other.shape
        assert (one - other).abs().max() < most


@pytest.mark.parametrize(
    ("kind", "write"),
    [
        ("llama", eagle_files.write),
        ("gemma2", eagle_files.write),
        ("gemma4_text", eagle_files.write),
        ("gemma4_text", assistant_files.write),
        ("phi", eagle_files.write),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_text_is_the_plain_one(
    kind: str, write: Callable[[Path, Path], Path], dtype: Dtype, tmp_path: Path
) -> None:
    """Alone and beside others, greedy and drawn, with penalties; whatever the head was shown."""
    directory = tiny_models.save(kind, tmp_path / "target")
    files = write(tmp_path / "head", directory)
    target = runner(directory, dtype, device="cuda", eagle=files)
    head = eagle_of(files, target)
    draw = random.Random(2)
    cases = [
        (
            [draw.randrange(3, VOCAB) for _ in range(length)],
            SamplingParams(
                temperature=0.8 * (length % 2),
                seed=length,
                repetition_penalty=1.2 if length % 4 else 1.0,
            ),
        )
        for length in (1, 8, 30, 81)
    ]
    plain = Pair.make(runner(directory, dtype, device="cuda")).generate_all(
        cases, TOKENS, method="plain"
    )
    pair = Pair.make(target, eagle=head)
    assert pair.generate_all(cases, TOKENS, method="eagle", draft_tokens=4) == plain
    alone = [
        pair.generate(prompt, TOKENS, sampling=sampling, method="eagle+ngram")
        for prompt, sampling in cases
    ]
    assert alone == plain
    assert pair.engine.failures.counts["draft"] == 0
    assert pair.engine.totals.drafts["eagle"].drafted_tokens > 0
    target.pool.blocks.check()
    assert target.pool.blocks.held == 0


def test_the_head_sees_states_that_texts_have_alone(tmp_path: Path) -> None:
    """Through graphs, which write all passes to the same place."""
    directory = tiny_models.save("llama", tmp_path / "target")
    files = eagle_files.write(tmp_path / "head", directory)
    target = runner(directory, "bfloat16", device="cuda", eagle=files)
    prompts = [[5 + seed] * (seed + 2) + list(range(10, 30)) for seed in range(4)]
    greedy = SamplingParams(temperature=0.0)
    cases = [(prompt, greedy) for prompt in prompts]
    plain = Pair.make(target).generate_all(cases, TOKENS, method="plain")
    known = [
        eagle_files.Known.of(target, [*prompt, *ids])
        for prompt, ids in zip(prompts, plain, strict=True)
    ]
    head = eagle_files.KnowingHead(known, target, right=0.7)
    pair = Pair.make(target, eagle=head)
    assert pair.generate_all(cases, TOKENS, method="eagle", draft_tokens=4) == plain
    assert head.strange == []
    assert head.shown > 4 * TOKENS
    assert pair.engine.totals.drafts["eagle"].accepted_tokens > 2 * TOKENS
