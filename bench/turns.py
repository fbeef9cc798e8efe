"""`python -m bench.turns`: time to the first token, turn by turn of growing conversations.

Each turn adds the same number of tokens and is sent with all that went before. With a session the
history's keys and values are still on its verifier; beside it the same turn is asked with a first
token that nobody has used, so that nothing of it is cached. Turns of both kinds alternate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from paceline import Client

from bench import prompts
from bench.arguments import at_least, ending_well
from launcher.cluster import Cluster
from launcher.commandline import WorkerOptions
from launcher.models import Models, bundled

FIRST_UNSEEN = 300
"""Ids from here on begin the prompts that share nothing: none of the special ones."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One turn, in medians over the conversations."""

    turn: int
    """From 1."""
    prompt_tokens: float
    """History and what the turn adds."""
    cached_tokens: float
    """Of those, with the session."""
    session_ms: float
    """Until the first token, with the session."""
    cold_ms: float
    """Until the first token, where nothing is cached."""


@dataclass(frozen=True)
class _First:
    """The first token of one turn."""

    seconds: float
    prompt_tokens: int
    cached_tokens: int
    ids: tuple[int, ...]  # of the whole answer


def main(argv: Sequence[str] | None = None) -> None:
    """Run it and print a line for each turn."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--turns", type=at_least(1), default=12, help="of each conversation")
    parser.add_argument("--conversations", type=at_least(1), default=5, help="one after the other")
    parser.add_argument("--added", type=at_least(1), default=64, help="tokens a turn adds")
    parser.add_argument("--max-tokens", type=at_least(1), default=32, help="tokens of each answer")
    parser.add_argument("--json", action="store_true", help="one line for machines")
    given = parser.parse_args(argv)
    models = Models(target=bundled("target"))
    cluster = Cluster(models=models, options=WorkerOptions(threads=1))
    with cluster, Client(cluster.address) as client:
        turns = measure(client, given.turns, given.conversations, given.added, given.max_tokens)
    if given.json:
        print(json.dumps([asdict(turn) for turn in turns]))
        return
    print("turn  prompt  cached  session ms  cold ms")
    for turn in turns:
        print(
            f"{turn.turn:4d}  {turn.prompt_tokens:6.0f}  {turn.cached_tokens:6.0f}"
            f"  {turn.session_ms:10.1f}  {turn.cold_ms:7.1f}"
        )


def measure(
    client: Client, turns: int, conversations: int, added: int, max_tokens: int
) -> list[Turn]:
    """Hold conversations, each turn with and without its history's cache.

    Args:
        client: Of a deployment that nobody else uses.
        turns: Of each conversation.
        conversations: How many.
        added: Tokens that each turn adds to the prompt.
        max_tokens: Tokens of each answer.
    """
    chosen = prompts.load(per_domain=4)
    words = [id_ for ids in prompts.encode(chosen, client) for id_ in ids]
    _first(client, words[:added], max_tokens, "")  # pays for what is set up once
    warm: list[list[_First]] = [[] for _ in range(turns)]
    cold: list[list[_First]] = [[] for _ in range(turns)]
    for conversation in range(conversations):
        history: list[int] = [words[conversation]]
        for turn in range(turns):
            start = (conversation * turns + turn) * added
            history += [words[(start + offset) % len(words)] for offset in range(added)]
            unseen = FIRST_UNSEEN + conversation * turns + turn
            cold[turn].append(_first(client, [unseen, *history], max_tokens, ""))
            warm[turn].append(_first(client, history, max_tokens, f"turns-{conversation}"))
            history += warm[turn][-1].ids
    return [
        Turn(
            turn=1 + index,
            prompt_tokens=statistics.median(one.prompt_tokens for one in with_session),
            cached_tokens=statistics.median(one.cached_tokens for one in with_session),
            session_ms=1e3 * statistics.median(one.seconds for one in with_session),
            cold_ms=1e3 * statistics.median(one.seconds for one in without),
        )
        for index, (with_session, without) in enumerate(zip(warm, cold, strict=True))
    ]


def _first(client: Client, ids: list[int], max_tokens: int, session: str) -> _First:
    started = time.perf_counter()
    generation = client.generate(
        token_ids=ids,
        max_tokens=max_tokens,
        method="plain",
        ignore_eos=True,
        session_id=session or None,
    )
    seconds = 0.0
    for chunk in generation:
        if chunk.token_ids and not seconds:
            seconds = time.perf_counter() - started
    result = generation.result()
    return _First(seconds, result.usage.prompt_tokens, result.usage.cached_tokens, result.token_ids)


if __name__ == "__main__":
    with ending_well():
        main()
