"""A hundred seeded generations while processes are retired and killed: every id is as it was.

When a process dies is drawn by seed and counted in tokens received, so that it falls into the
generations however fast the machine is.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paceline
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests import tiny_models
from tests.e2e.chaos.deployment import Deployment, Member, deployed

pytestmark = pytest.mark.timeout(240)

GENERATIONS, TOKENS = 104, 32

LONG = 256
"""Tokens of a few that outlast the others: services can be done with all of those before the
client has read half of them."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target, and a drafter that is sometimes right."""
    target = tiny_models.save("llama", tmp_path_factory.mktemp("target"))
    return target, blurred(target, tmp_path_factory.mktemp("draft"))


def blurred(model: Path, directory: Path) -> Path:
    """Writes a model again with a little noise on its weights."""
    torch.manual_seed(0)
    loaded = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        for weight in loaded.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.03)
    loaded.save_pretrained(directory)
    return directory


@pytest.fixture
def deployment(models: tuple[Path, Path], tmp_path: Path) -> Iterator[Deployment]:
    target, draft = models
    with deployed(tmp_path, target=target, drafts=[draft, draft], verifiers=3) as running:
        yield running


def options(index: int) -> dict[str, Any]:
    """One of many different generations, the same for the same index."""
    chance = random.Random(index)
    return {
        "token_ids": [chance.randrange(3, tiny_models.VOCAB) for _ in range(4 + index % 30)],
        "max_tokens": LONG if index % 26 == 2 else TOKENS,
        "temperature": (0.0, 0.7, 1.0)[index % 3],
        "repetition_penalty": 1.0 + (index % 2) * 0.2,
        "seed": index,
        "ignore_eos": index % 5 > 0,
        "method": ("draft", "auto", "plain", "ngram")[index % 4],
        "draft_tokens": 0 if index % 4 else 4,  # nothing hangs on measured times then
        "session_id": f"s{index}" if index % 2 else None,
    }


class Reaper:
    """Does something to processes as tokens come in.

    Args:
        victims: Whom, with how many tokens must have come before.
        deed: What.
    """

    def __init__(
        self, victims: list[tuple[int, Member]], deed: Callable[[Member], None] = Member.kill
    ) -> None:
        self._victims = sorted(victims, key=lambda each: each[0])
        self._deed = deed
        self._tokens = 0
        self.reached: list[str] = []

    def count(self, tokens: int) -> None:
        """Notes tokens that came."""
        self._tokens += tokens
        while self._victims and self._victims[0][0] <= self._tokens:
            _, victim = self._victims.pop(0)
            self.reached.append(victim.service)
            self._deed(victim)


async def run(deployment: Deployment, count: Callable[[int], None]) -> list[paceline.Result]:
    """Runs all generations at once."""

    async def one(client: paceline.AsyncClient, index: int) -> paceline.Result:
        generation = client.generate(**options(index))
        pieces: list[int] = []
        async for chunk in generation:
            pieces.extend(chunk.token_ids)
            count(len(chunk.token_ids))
        result = await generation.result()
        assert tuple(pieces) == result.token_ids
        return result

    async with deployment.client() as client:
        return await asyncio.gather(*(one(client, index) for index in range(GENERATIONS)))


def check(found: list[paceline.Result], undisturbed: list[paceline.Result]) -> None:
    for result, expected in zip(found, undisturbed, strict=True):
        assert result.token_ids == expected.token_ids
        assert result.finish_reason == expected.finish_reason
        assert result.usage.prompt_tokens == expected.usage.prompt_tokens
        assert result.usage.completion_tokens == len(result.token_ids)
        stats = result.speculation
        assert stats.accepted_tokens == sum(stats.accepted_per_position)
        assert stats.accepted_tokens <= stats.drafted_tokens
        assert stats.rounds + stats.accepted_tokens >= len(result.token_ids)


def _drafted(result: paceline.Result) -> int:
    """Draft tokens that a drafter sent."""
    stats = result.speculation
    return stats.drafted_tokens if stats.method == "draft" else 0


async def test_every_generation_survives_a_rollout_and_the_loss_of_all_drafters_and_one_of_each(
    deployment: Deployment,
) -> None:
    undisturbed = await run(deployment, lambda _: None)
    assert sum(_drafted(result) for result in undisturbed) > 0
    chance = random.Random(2026)
    total = sum(len(result.token_ids) for result in undisturbed)

    retired = deployment.verifiers.pop()
    reaper = Reaper([(chance.randrange(1, total // 4), retired)], Member.terminate)
    check(await run(deployment, reaper.count), undisturbed)
    assert retired.ended() == 0

    victims = [
        *deployment.drafters,  # one on this machine, and one as if on another
        deployment.verifiers[chance.randrange(2)],
        deployment.gateways[0],
        deployment.store,
    ]
    chance.shuffle(victims)
    reaper = Reaper([(chance.randrange(1, total // 2), victim) for victim in victims])
    found = await run(deployment, reaper.count)
    assert sorted(reaper.reached) == ["drafter", "drafter", "gateway", "store", "verifier"]
    check(found, undisturbed)
    assert '"placed"' in deployment.gateways[1].log.read_text(), "nobody was resumed"
    survivors = [*deployment.drafters, *deployment.verifiers, *deployment.gateways]
    assert sum(member.alive for member in survivors) == 2
