"""One seed, one text, with an assistant, which is shown the text's own keys and states alone."""

from __future__ import annotations

import random
from collections.abc import Sequence as Seq
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from common.model.assistant.head import AssistantHead, Ending
from common.model.drafting_head import DraftingHead
from common.model.loader import Dtype
from common.model.runner import Runner
from common.model.segment import Segment
from common.model.tree import TokenTree
from common.sampling_params import SamplingParams
from tests import tiny_models
from tests.inprocess import Pair, eagle_of, runner
from tests.tiny_models import LARGE_GEMMA4, VOCAB
from tests.unit.common.model.assistant import files
from verifier.config import EngineConfig
from verifier.cost import StepCost
from verifier.methods.assistant import AssistantProposer
from verifier.proposer import Outcome

pytestmark = pytest.mark.usefixtures("still")

TOKENS, CASES = 20, 9
SMALL = EngineConfig(max_batch_tokens=32, max_running=8)


class Known(NamedTuple):
    """A text, and what a pass of all of it leaves."""

    ids: Seq[int]
    states: Tensor  # [n, t]
    keys: Seq[Tensor]  # of layers, [n, kv heads, 2 * size] each

    @classmethod
    def of(cls, target: Runner, ids: Seq[int]) -> Known:
        slots = target.pool.lease(len(ids)).slots[: len(ids)]
        states = target.forward([Segment(ids, 0, slots, wanted=range(len(ids)))]).states
        return cls(ids, states, [cache[slots] for cache in target.model_caches])


class KnowingAssistant(AssistantHead):
    """Guesses what comes in texts that it knows, most of the time.

    Args:
        texts: What it knows.
        target: The runner that computes them again.
        right: How often it is.
    """

    def __init__(self, texts: Seq[Known], target: Runner, right: float) -> None:
        DraftingHead.__init__(self, None, vocab_size=VOCAB)
        self._texts, self._caches = texts, target.model_caches
        self._right, self._draw = right, random.Random(1)
        self.asked = 0
        """Times."""
        self.strange: list[str] = []
        """What was not as it has to be; raised it would only cost drafts."""

    def groups(self, texts: Seq[Ending]) -> list[list[int]]:
        return [[*range(len(texts))]]

    def draft(self, texts: Seq[Ending]) -> Any:
        self.asked += 1
        return KnowingDraft(self, [self._place(text) for text in texts])

    def guessed(self, places: Seq[tuple[Known, int]]) -> Tensor:
        """Logits of the tokens after places. # [N, V]"""
        logits = torch.zeros(len(places), VOCAB)
        for row, (text, at) in zip(logits, places, strict=True):
            row[self._draw.randrange(VOCAB)] = 29.0
            row[[*text.ids, 0][min(at + 1, len(text.ids))]] = (
                40.0 if self._draw.random() < self._right else 28.0
            )
        return logits

    def _place(self, seen: Ending) -> tuple[Known, int]:
        end = len(seen.slots)
        for text in self._texts:
            if seen.token == text.ids[end : end + 1][0] and self._is(text, seen):
                return text, end
        self.strange.append(f"a text of {end}")
        return self._texts[0], end

    def _is(self, text: Known, seen: Ending) -> bool:
        end = len(seen.slots)
        pairs = zip(text.keys, self._caches, strict=True)
        return torch.equal(seen.state, text.states[end - 1]) and all(
            torch.equal(keys[:end], cache[seen.slots]) for keys, cache in pairs
        )


@dataclass
class KnowingDraft:
    """Goes on as if guesses were right."""

    head: KnowingAssistant
    places: list[tuple[Known, int]]
    logits: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.logits = self.head.guessed(self.places)

    def further(self, parents: Seq[int], tokens: Seq[int]) -> Tensor:
        moved = (self.places[parent] for parent in parents)
        self.places = [(text, at + 1) for text, at in moved]
        self.logits = self.head.guessed(self.places)
        return self.logits


class Small(NamedTuple):
    """A target with an assistant of random weights, and what it writes without one."""

    directory: Path
    files: Path
    dtype: Dtype
    target: Runner
    head: DraftingHead[Any]
    plain: list[list[int]]
    known: list[Known]


def _case(index: int) -> tuple[list[int], SamplingParams]:
    """Texts that begin alike, three by three."""
    draw = random.Random(index // 3)
    prompt = [draw.randrange(3, VOCAB) for _ in range(draw.choice([1, 31, 60, 90]))]
    prompt.append(index)
    if index % 3 == 0:
        return prompt, SamplingParams(temperature=0.8, top_p=0.9, seed=index)
    return prompt, SamplingParams(repetition_penalty=1.3 if index % 3 == 1 else 1.0)


def _texts(pair: Pair, **options: object) -> list[list[int]]:
    found = pair.generate_all(map(_case, range(CASES)), TOKENS, **options)
    assert pair.engine._runner.pool.blocks.held == 0
    assert pair.engine.failures.counts["draft"] == 0
    return found


@pytest.fixture(
    scope="module", params=["small-bfloat16", "small-float32", "large-float32", "small-float16"]
)
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Small:
    """Through kernels of ours and, in float16, through torch."""
    size, dtype = request.param.split("-")
    folder = tmp_path_factory.mktemp("small")
    changes = LARGE_GEMMA4 if size == "large" else {}
    directory = tiny_models.save(files.TARGET, folder / "target", **changes)
    assistant = files.write(folder / "assistant", directory)
    target = runner(directory, dtype)
    plain = _texts(Pair.make(target), method="plain")
    again = runner(directory, dtype)
    known = [Known.of(again, [*_case(index)[0], *ids]) for index, ids in enumerate(plain)]
    return Small(directory, assistant, dtype, target, eagle_of(assistant, target), plain, known)


@pytest.mark.parametrize("method", ["eagle", "eagle+ngram"])
@pytest.mark.parametrize("config", [None, SMALL])
def test_the_text_is_that_of_plain_decoding(
    method: str, config: EngineConfig | None, small: Small
) -> None:
    pair = Pair.make(small.target, config=config, eagle=small.head)
    assert isinstance(pair.engine.methods.single["eagle"], AssistantProposer)
    assert _texts(pair, method=method) == small.plain


@pytest.mark.parametrize("method", ["eagle", "eagle+ngram", "draft+eagle"])
@pytest.mark.parametrize("right", [1.0, 0.7])
def test_it_sees_the_keys_and_states_of_its_text(method: str, right: float, small: Small) -> None:
    """As they are where the whole text is computed at once; so its guesses come true."""
    head = KnowingAssistant(small.known, small.target, right)
    draft = runner(small.directory, small.dtype) if "draft" in method else None
    pair = Pair.make(small.target, draft, eagle=head)
    heard = [
        pair.submit(prompt, TOKENS, sampling=sampling, method=method, draft_tokens=4)
        for prompt, sampling in map(_case, range(CASES))
    ]
    pair.run()
    assert [one.ids for one in heard] == small.plain
    assert head.strange == []
    assert head.asked > 0
    accepted = sum(one.events[-1].counts.accepted_tokens for one in heard)
    assert accepted > CASES * TOKENS / 5


def test_later_turns_and_texts_that_are_cancelled(small: Small) -> None:
    """Prefixes that were computed for others count as the text's own."""
    head, draw = KnowingAssistant(small.known, small.target, 0.7), random.Random(0)
    pair, heard = Pair.make(small.target, eagle=head), []
    for index in range(2 * CASES):
        prompt, sampling = _case(index % CASES)
        method = draw.choice(["eagle", "plain"])
        heard.append(pair.submit(prompt, TOKENS, sampling=sampling, method=method))
        for _ in range(draw.randrange(3)):
            pair.engine.step()
        if draw.random() < 0.3:
            pair.engine.cancel(draw.choice(heard).ticket)
    pair.run()
    for one, plain in zip(heard, small.plain * 2, strict=True):
        assert one.ids == plain[: len(one.ids)]
    assert 0 < sum(len(one.ids) == TOKENS for one in heard) < 2 * CASES
    assert head.strange == []
    eagle = pair.engine.methods.single["eagle"]
    assert isinstance(eagle, AssistantProposer)
    assert not eagle._sessions
    assert small.target.pool.blocks.held == 0


def test_a_cache_that_is_too_small_for_all(small: Small) -> None:
    """Texts lose their keys and states on the way, and are computed again in pieces."""
    block = sum(layer[:16].nbytes for layer in small.target.pool.layers)
    tight = runner(small.directory, small.dtype, kv_bytes=12 * block)
    knowing = KnowingAssistant(small.known, tight, 0.8)
    for head in (eagle_of(small.files, tight), knowing):
        pair = Pair.make(tight, config=SMALL, eagle=head)
        assert _texts(pair, method="eagle") == small.plain
        assert pair.engine.preemptions > 0
    assert knowing.strange == []


class FakeText:
    """As much of a sequence as a proposer looks at."""

    def __init__(self, ids: list[int], slots: int) -> None:
        self.ids, self.finished, self.room = ids, False, 100
        self.lease = SimpleNamespace(slots=np.arange(slots))
        self.request = SimpleNamespace(draft_tokens=4, sampling=SamplingParams())


@pytest.mark.parametrize(
    ("grown", "slots", "drafts"), [(0, 4, True), (0, 9, True), (1, 9, False), (0, 3, False)]
)
def test_nothing_is_drafted_behind_what_it_has_no_state_or_keys_of(
    grown: int, slots: int, drafts: bool
) -> None:
    """A text that went on without it, or gave its cache back."""
    head = KnowingAssistant([], SimpleNamespace(model_caches=[]), 1.0)  # type: ignore[arg-type]
    proposer: Any = AssistantProposer(head, StepCost(), 8)
    text, tree = FakeText([5, 6, 7, 8, 9], slots), TokenTree(9)
    output: Any = SimpleNamespace(states=torch.zeros(1, 3))
    proposer.open(text)
    proposer.observe(text, Outcome(tree, [9], [], [9], output))
    text.ids += [3] * grown
    with suppress(IndexError):  # it knows no text
        proposer.propose(text, tree, 4)
    assert (head.asked > 0) == drafts


def _fails(*_: object, **__: object) -> Any:
    raise RuntimeError("boom")


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (KnowingAssistant, "draft"),
        (KnowingDraft, "further"),
        (KnowingAssistant, "top"),
        (AssistantProposer, "open"),
        (AssistantProposer, "propose"),
        (AssistantProposer, "observe"),
    ],
)
@pytest.mark.parametrize("small", ["small-bfloat16"], indirect=True)
def test_an_assistant_that_fails_costs_drafts_only(
    owner: type, name: str, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Always, and now and then."""
    works, draw = getattr(owner, name), random.Random(2)
    for always in (True, False):

        def called(*args: Any, always: bool = always, **options: Any) -> Any:
            return (_fails if always or draw.random() < 0.5 else works)(*args, **options)

        head = KnowingAssistant(small.known, small.target, 0.8)
        monkeypatch.setattr(owner, name, called)
        pair = Pair.make(small.target, eagle=head)
        found = pair.generate_all(map(_case, range(CASES)), TOKENS, method="eagle")
        assert found == small.plain
        assert pair.engine.failures.counts["draft"] > 0
        assert head.strange == []
