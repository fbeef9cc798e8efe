"""Prompts that nobody has asked yet share no beginning with any other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from bench.unseen import Unseen

PROMPTS = ([1, 50, 51, 52], [1, 50, 51])
MARKS = (7, 8, 9)


def test_no_two_begin_alike() -> None:
    unseen = Unseen(MARKS)
    asked = [(prompt, unseen(prompt)) for _ in range(4) for prompt in PROMPTS]
    assert all(new[:1] + new[3:] == prompt for prompt, new in asked)
    assert len({tuple(new[1:3]) for _, new in asked}) == len(asked)
    assert {id_ for _, new in asked for id_ in new[1:3]} <= set(MARKS)


def test_threads_share_none() -> None:
    unseen = Unseen(range(100, 200))
    with ThreadPoolExecutor(8) as pool:
        asked = list(pool.map(unseen, PROMPTS * 500))
    assert len({tuple(new[:3]) for new in asked}) == len(asked)


def test_pairs_begin_anew_in_the_end() -> None:
    unseen = Unseen(MARKS)
    first = [unseen(PROMPTS[0]) for _ in range(len(MARKS) ** 2)]
    assert [unseen(PROMPTS[0]) for _ in first] == first


def test_without_marks_a_prompt_stays_as_it_is() -> None:
    assert Unseen(())(PROMPTS[0]) == PROMPTS[0]
