"""One seed, one text, with a head that goes on from the target's states; it sees those of the text
itself, whatever else the engine does."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from common.model.eagle.compiled import NativeEagle
from common.model.eagle.through_torch import TorchHead
from common.model.keyed_head import KeyedHead
from common.model.loader import Dtype
from common.model.mtp.head import MtpHead
from common.model.native import instructions
from common.model.output import Output
from common.model.roll import Drawing
from common.model.runner import Runner
from common.model.segment import Segment
from common.sampling_params import SamplingParams
from tests import tiny_models
from tests.inprocess import Pair, eagle_of, runner
from tests.tiny_models import VOCAB
from tests.unit.common.model.mtp import files as mtp_files
from tests.unit.verifier.methods import eagle_files
from tests.unit.verifier.methods.eagle_files import KnowingHead, Known
from verifier.config import EngineConfig
from verifier.gates.gate import Gate
from verifier.methods.eagle import EagleProposer

pytestmark = pytest.mark.usefixtures("still")

TOKENS, CASES = 24, 10
SMALL = EngineConfig(max_batch_tokens=32, max_running=8)


class Small(NamedTuple):
    """A target with a head of random weights, and what it writes without one."""

    directory: Path
    files: Path
    dtype: Dtype
    target: Runner
    head: KeyedHead
    plain: list[list[int]]


@pytest.fixture(
    scope="module",
    params=[
        "llama-bfloat16",
        "llama-float32",
        "llama-bfloat16-torch",
        "phi-float32",
        "glm4_moe-bfloat16-own",
    ],
)
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Small:
    """Compiled, or through torch: heads, or targets too; one that the target brings along."""
    kind, dtype, *how = request.param.split("-")
    folder = tmp_path_factory.mktemp("small")
    directory = folder / "target"
    if how == ["own"]:
        files = mtp_files.write(kind, directory)
    else:
        tiny_models.save(kind, directory)
        files = eagle_files.write(folder / "head", directory, normed=kind == "llama")
    target = runner(directory, dtype, eagle=files)
    with pytest.MonkeyPatch.context() as patch:
        if how == ["torch"]:
            patch.setattr(NativeEagle, "can_run", lambda *_: False)
        head = eagle_of(files, target)
    if how == ["own"]:
        assert isinstance(head, MtpHead)
    elif instructions(target.loaded.dtype):
        assert isinstance(head, TorchHead if how else NativeEagle)
    plain = _texts(Pair.make(runner(directory, dtype)), method="plain")
    return Small(directory, files, dtype, target, head, plain)


def _case(index: int) -> tuple[list[int], SamplingParams]:
    """Texts that begin alike, two by two."""
    draw = random.Random(index // 2)
    prompt = [draw.randrange(3, VOCAB) for _ in range(draw.choice([1, 3, 31, 60, 90]))]
    prompt.append(index)
    if index % 3 == 0:
        return prompt, SamplingParams(temperature=0.8, top_p=0.9, seed=index)
    penalty = 1.3 if index % 3 == 1 else 1.0
    return prompt, SamplingParams(repetition_penalty=penalty, logit_bias={index: 1.0})


def _texts(pair: Pair, **options: object) -> list[list[int]]:
    found = pair.generate_all(map(_case, range(CASES)), TOKENS, **options)
    pair.engine._runner.pool.blocks.check()
    assert pair.engine._runner.pool.blocks.held == 0
    return found


def _failed(pair: Pair) -> int:
    return pair.engine.failures.counts["draft"]


@pytest.fixture
def knowing(small: Small) -> Callable[..., KnowingHead]:
    """A head that knows all texts of a small target, and their states alone."""
    texts = [
        Known.of(small.target, [*_case(index)[0], *ids]) for index, ids in enumerate(small.plain)
    ]
    return lambda **options: KnowingHead(texts, **{"target": small.target, **options})


@pytest.mark.parametrize("method", ["eagle", "eagle+ngram", "eagle+lookahead"])
@pytest.mark.parametrize("draft_tokens", [0, 5])
def test_text_is_the_plain_one(method: str, draft_tokens: int, small: Small) -> None:
    """Of several texts at once, greedy and drawn."""
    pair = Pair.make(small.target, eagle=small.head)
    assert _texts(pair, method=method, draft_tokens=draft_tokens) == small.plain
    assert _failed(pair) == 0
    drafted = pair.engine.totals.drafts[method].drafted_tokens
    assert drafted or not draft_tokens, "drafts are left off only where nobody asks for a length"


def test_texts_alone_are_the_plain_ones(small: Small) -> None:
    pair = Pair.make(small.target, eagle=small.head)
    for index in range(CASES):
        prompt, sampling = _case(index)
        assert (
            pair.generate(prompt, TOKENS, sampling=sampling, method="eagle") == (small.plain[index])
        )
    assert _failed(pair) == 0


@pytest.mark.parametrize("method", ["eagle", "eagle+ngram"])
@pytest.mark.parametrize("right", [1.0, 0.6])
def test_what_is_accepted_changes_no_text(
    method: str, right: float, small: Small, knowing: Callable[..., KnowingHead]
) -> None:
    """Nor what the head sees: the bits that a text's states have alone, whatever was accepted, and
    however its prompt was cut."""
    head = knowing(right=right)
    pair = Pair.make(small.target, config=SMALL, eagle=head)
    assert _texts(pair, method=method, draft_tokens=4) == small.plain
    assert head.strange == []
    assert _failed(pair) == 0
    assert pair.engine.totals.drafts[method].accepted_tokens > CASES


def test_accepted_tokens_are_counted_as_the_head_s(
    small: Small, knowing: Callable[..., KnowingHead]
) -> None:
    """As many as it was asked for in every round but the first, where it knows all."""
    pair = Pair.make(small.target, eagle=knowing())
    for index in range(CASES):
        prompt, sampling = _case(index)
        options = {"sampling": sampling, "draft_tokens": 4, "method": "eagle"}
        heard = pair.submit(prompt, TOKENS, **options)
        pair.run()
        assert heard.ids == small.plain[index]
        counts = heard.events[-1].counts
        assert counts is not None
        assert counts.accepted_by_method == {"eagle": counts.accepted_tokens}
        assert (counts.rounds, counts.accepted_tokens) == (6, 18)


def test_a_cache_that_is_too_small_for_all(
    small: Small, knowing: Callable[..., KnowingHead]
) -> None:
    """Texts lose their keys and states on the way, and are computed again in pieces."""
    pool = small.target.pool
    block = sum(layer[:16].nbytes for layer in pool.layers)
    kv_bytes = sum(layer.nbytes for layer in pool.layers) - (pool.slots // 16 - 18) * block
    tight = runner(small.directory, small.dtype, kv_bytes=kv_bytes, eagle=small.files)
    for head in (eagle_of(small.files, tight), knowing(target=tight, right=0.8)):
        pair = Pair.make(tight, config=SMALL, eagle=head)
        assert _texts(pair, method="eagle") == small.plain
        assert _failed(pair) == 0
        if isinstance(head, KnowingHead):
            assert head.strange == []


@pytest.mark.parametrize("first", ["plain", "eagle"])
def test_a_prefix_may_come_of_the_other_kind(
    first: str, small: Small, knowing: Callable[..., KnowingHead]
) -> None:
    second = "eagle" if first == "plain" else "plain"
    head = knowing(right=0.7)
    pair, cached = Pair.make(small.target, eagle=head), []
    for index in range(CASES):
        prompt, sampling = _case(index)
        for method in (first, second):
            heard = pair.submit(prompt, TOKENS, sampling=sampling, method=method)
            pair.run()
            assert heard.ids == small.plain[index]
        assert heard.events[-1].counts is not None
        cached.append(heard.events[-1].counts.cached_tokens)
    assert max(cached) >= 48
    assert head.strange == []
    assert _failed(pair) == 0


def test_texts_that_are_cancelled_leave_nothing(
    small: Small, knowing: Callable[..., KnowingHead]
) -> None:
    draw = random.Random(0)
    for head in (small.head, knowing(right=0.7)):
        pair = Pair.make(small.target, config=SMALL, eagle=head)
        heard = []
        for index in range(CASES):
            prompt, sampling = _case(index)
            heard.append(pair.submit(prompt, TOKENS, sampling=sampling, method="eagle"))
            for _ in range(draw.randrange(3)):
                pair.engine.step()
            if draw.random() < 0.4:
                pair.engine.cancel(draw.choice(heard).ticket)
        pair.run()
        for one, plain in zip(heard, small.plain, strict=True):
            assert one.ids == plain[: len(one.ids)]
        assert 0 < sum(len(one.ids) == TOKENS for one in heard) < CASES
        eagle = pair.engine.methods.single["eagle"]
        assert isinstance(eagle, EagleProposer)
        assert not eagle._sessions
        assert small.target.pool.blocks.held == 0


@pytest.mark.parametrize("method", ["plain", "ngram", "eagle"])
def test_states_are_computed_only_where_somebody_looks(
    method: str, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of prompts, and of texts that the head drafts for."""
    forward, taken = small.target.forward, []

    def watched(segments: Seq[Segment], drawings: Seq[Drawing], **options: bool) -> Output:
        output = forward(segments, drawings, **options)
        assert options["tap"] <= (output.features is not None)
        taken.append((segments[0].start + len(segments[0].ids), options["tap"]))
        return output

    monkeypatch.setattr(small.target, "forward", watched)
    pair = Pair.make(small.target, config=SMALL, eagle=small.head)
    pair.generate(list(range(3, 93)), TOKENS, method=method)
    looked = [end <= 90 or method == "eagle" for end, _ in taken]
    assert len(taken) > 2
    assert [tap for _, tap in taken] == looked


def _fails(*_: object, **__: object) -> Any:
    raise RuntimeError("boom")


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (KnowingHead, "write"),
        (KnowingHead, "draft"),
        (eagle_files.KnowingDraft, "further"),
        (KnowingHead, "top"),
        (EagleProposer, "reads"),
        (EagleProposer, "read"),
        (EagleProposer, "propose"),
        (EagleProposer, "observe"),
        (EagleProposer, "open"),
        (EagleProposer, "ready"),
    ],
)
@pytest.mark.parametrize("small", ["llama-bfloat16", "phi-float32"], indirect=True)
def test_a_head_that_fails_costs_drafts_only(
    owner: type,
    name: str,
    small: Small,
    knowing: Callable[..., KnowingHead],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Always, and now and then."""
    works, draw = getattr(owner, name), random.Random(1)
    for always in (True, False):
        head = knowing(right=0.8)

        def called(*args: Any, always: bool = always, **options: Any) -> Any:
            return (_fails if always or draw.random() < 0.5 else works)(*args, **options)

        monkeypatch.setattr(owner, name, called)
        pair = Pair.make(small.target, eagle=head)
        heard = []
        for index in range(CASES):
            prompt, sampling = _case(index)
            method = "plain" if index % 3 == 2 else "eagle"
            heard.append(pair.submit(prompt, TOKENS, sampling=sampling, method=method))
        pair.run()
        assert [one.ids for one in heard] == small.plain
        assert _failed(pair) > 0
        assert head.strange == []


def test_drafts_that_are_left_off_and_taken_up_again(
    small: Small, knowing: Callable[..., KnowingHead], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile several passes may run at once, whose states nobody sees."""
    draw = random.Random(0)
    monkeypatch.setattr(Gate, "drafting", lambda gate, sequences, now: draw.random() < 0.6)
    for head in (small.head, knowing(right=0.8)):
        pair = Pair.make(small.target, eagle=head)
        assert _texts(pair, method="eagle") == small.plain
        assert _failed(pair) == 0
        if isinstance(head, KnowingHead):
            assert head.strange == []


class Demo(NamedTuple):
    """The bundled target with its head, and what it writes without."""

    target: Runner
    head: KeyedHead
    plain: list[list[int]]


@pytest.fixture(scope="module", params=["bfloat16", "float32"])
def demo(request: pytest.FixtureRequest, demo_target: Path, demo_eagle: Path) -> Demo:
    target = runner(demo_target, request.param, eagle=demo_eagle)
    plain = _texts(Pair.make(target), method="plain")
    return Demo(target, eagle_of(demo_eagle, target), plain)


def test_a_trained_head_is_often_right(demo: Demo) -> None:
    """As often beside other texts as alone."""
    pair, accepted = Pair.make(demo.target, eagle=demo.head), []
    for together in (False, True):
        heard = []
        for prompt, sampling in map(_case, range(CASES)):
            options = {"sampling": sampling, "method": "eagle", "draft_tokens": 4}
            heard.append(pair.submit(prompt, TOKENS, **options))
            if not together:
                pair.run()
        pair.run()
        assert [one.ids for one in heard] == demo.plain
        accepted.append(sum(one.events[-1].counts.accepted_tokens for one in heard))
    assert min(accepted) > CASES * TOKENS / 4
    assert accepted[1] == pytest.approx(accepted[0], rel=0.15)
