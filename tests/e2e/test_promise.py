"""The promise through client, gateway, verifier and drafter, each a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from paceline import Client, Generation, Result
from paceline.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PacelineError,
)

from common.errors import StartupError
from launcher.cluster import Cluster
from launcher.drafting import await_draft
from launcher.models import Models

pytestmark = pytest.mark.timeout(240)

PROMPTS = (
    "Once upon a time, a little dog",
    "I would like to book a table for two",
    "Tom has 3 apples. He buys 5 more.",
    "The weather in Paris",
)
TOKENS = 40


@pytest.fixture(scope="module")
def cluster(demo_target: Path, demo_draft: Path) -> Iterator[Cluster]:
    with Cluster(models=Models(target=demo_target, draft=demo_draft)) as running:
        yield running


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.address) as one:
        yield one


def _started(client: Client, index: int, **options: object) -> Generation:
    return client.generate(
        PROMPTS[index % len(PROMPTS)],
        max_tokens=TOKENS,
        temperature=0.8,
        top_p=0.9,
        seed=index,
        ignore_eos=True,
        **options,  # type: ignore[arg-type]
    )


def _text(client: Client, index: int, **options: object) -> Result:
    return _started(client, index, **options).result()


@pytest.fixture(scope="module")
def plain(client: Client) -> list[tuple[int, ...]]:
    return [_text(client, index, method="plain").token_ids for index in range(8)]


def test_plain_draft_and_auto_write_the_same(client: Client, plain: list[tuple[int, ...]]) -> None:
    for options in (
        {"method": "draft"},
        {"method": "auto"},
        {"method": "draft", "draft_tokens": 7},
    ):
        results = [_text(client, index, **options) for index in range(8)]
        assert [result.token_ids for result in results] == plain
        ran = {result.speculation.method for result in results}
        assert ran == {"draft"} if options["method"] == "draft" else "auto" not in ran
        if "draft_tokens" in options:  # else drafts are left off where the machine is busy
            assert sum(result.speculation.accepted_tokens for result in results) > 0


def test_eight_at_once_write_the_same(client: Client, plain: list[tuple[int, ...]]) -> None:
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda index: _text(client, index, method="draft"), range(8)))
    assert [result.token_ids for result in results] == plain


def test_statistics_agree_with_the_text(client: Client) -> None:
    result = _text(client, 1, method="draft", draft_tokens=4)
    speculation, usage = result.speculation, result.usage
    assert usage.completion_tokens == len(result.token_ids) == TOKENS
    assert speculation.acceptance == "coupled"
    assert not speculation.lossy
    assert speculation.mean_accepted_length == pytest.approx(TOKENS / speculation.rounds)
    assert sum(speculation.accepted_per_position) == speculation.accepted_tokens
    assert len(speculation.accepted_per_position) <= 4
    plain = _text(client, 1, method="plain")
    assert plain.speculation.mean_accepted_length == 1.0


def test_a_prompt_seen_before_is_found_in_the_cache(client: Client) -> None:
    prompt = " ".join(PROMPTS) * 3
    first = client.generate(prompt, max_tokens=4, session_id="s").result()
    again = client.generate(prompt, max_tokens=4, session_id="s").result()
    assert first.usage.cached_tokens == 0
    assert again.usage.cached_tokens >= 16
    assert first.token_ids == again.token_ids


def test_text_messages_and_ids_agree(client: Client) -> None:
    ids = client.tokenize(PROMPTS[0])
    by_text = client.generate(PROMPTS[0], max_tokens=12).result()
    by_ids = client.generate(token_ids=ids, max_tokens=12).result()
    assert by_text.token_ids == by_ids.token_ids
    messages = [{"role": "user", "content": PROMPTS[1]}]
    chat = client.generate(messages=messages, max_tokens=12).result()
    assert chat.text == client.detokenize(chat.token_ids)


def test_stop_strings_end_the_text(client: Client) -> None:
    whole = client.generate(PROMPTS[0], max_tokens=60).result().text
    stop = whole[20:24]
    cut = client.generate(PROMPTS[0], max_tokens=60, stop=[stop]).result()
    assert cut.text == whole[: whole.index(stop)]
    assert cut.finish_reason == "stop"


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"prompt": ""}, InvalidArgumentError, "at least 1 token"),
        ({"token_ids": [99999]}, InvalidArgumentError, "4095"),
        ({"prompt": "a", "max_tokens": 5000}, InvalidArgumentError, "2048"),
        ({"prompt": "a", "top_p": 1.5}, InvalidArgumentError, "top_p"),
        ({"prompt": "a", "temperature": -1.0}, InvalidArgumentError, "temperature"),
        ({"prompt": "a", "method": "magic"}, InvalidArgumentError, "plain"),
        ({"prompt": "a", "method": "draft+magic"}, InvalidArgumentError, "lookahead"),
        ({"prompt": "a", "method": "draft+plain"}, InvalidArgumentError, "plain"),
        ({"prompt": "a", "model": "nobody"}, NotFoundError, "target"),
    ],
)
def test_bad_requests_say_what_is_allowed(
    client: Client, options: dict[str, object], error: type[PacelineError], words: str
) -> None:
    with pytest.raises(error, match=words):
        client.generate(**{"max_tokens": 4, **options}).result()  # type: ignore[arg-type]


def test_the_gateway_stays_small(cluster: Cluster, client: Client) -> None:
    (gateway,) = (service for service in cluster.services if service.name == "gateway")
    assert gateway.process is not None
    assert psutil.Process(gateway.process.pid).memory_info().rss < 300 << 20


def test_another_tokenizer_of_the_same_size_is_never_paired(
    demo_target: Path, demo_draft: Path, tmp_path: Path
) -> None:
    other = tmp_path / "draft"
    shutil.copytree(demo_draft, other)
    definition = json.loads((other / "tokenizer.json").read_text())
    vocabulary = definition["model"]["vocab"]
    first, second = sorted(vocabulary, key=vocabulary.__getitem__)[300:302]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(definition))
    with (
        Cluster(models=Models(target=demo_target, draft=other), with_store=False) as cluster,
        Client(cluster.address) as client,
    ):
        with pytest.raises(FailedPreconditionError, match="draft"):
            client.generate("a", max_tokens=4, method="draft").result()
        assert client.generate("a", max_tokens=4).result().speculation.method != "draft"
        with pytest.raises(StartupError, match="the drafter does not fit: its tokenizer"):
            await_draft(cluster, client)


def test_a_drafter_killed_half_way_changes_nothing(
    cluster: Cluster, client: Client, plain: list[tuple[int, ...]]
) -> None:
    """The last one: nobody drafts in this cluster after it."""
    (drafter,) = (service for service in cluster.services if service.name == "drafter")
    assert drafter.process is not None
    running = [_started(client, index, method="draft", draft_tokens=2) for index in range(8)]
    streams = [iter(generation) for generation in running]
    heads = [next(stream).token_ids for stream in streams]
    os.kill(drafter.process.pid, signal.SIGKILL)
    tails = [[token for chunk in stream for token in chunk.token_ids] for stream in streams]
    assert [(*head, *tail) for head, tail in zip(heads, tails, strict=True)] == plain
    assert _text(client, 0, method="auto").token_ids == plain[0]
