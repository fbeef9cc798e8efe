"""Events reach the request's task: all of them, in order, none after the last."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from common.errors import Aborted
from verifier.mailbox import Mailbox, beat_s, next_beat
from verifier.sequence import Event, FinishReason

HOUR_S = 3600.0


def event(*ids: int) -> Event:
    return Event(ids=list(ids))


LAST = Event(finish=FinishReason.LENGTH)


def ids(events: Sequence[Event]) -> list[int]:
    return [id_ for each in events for id_ in each.ids]


@given(beat=st.integers(0, 10**9), phase=st.floats(-0.49, 0.49), interval_ms=st.integers(1, 1000))
def test_messages_of_all_streams_go_at_the_same_beats(
    beat: int, phase: float, interval_ms: int
) -> None:
    """A stream that wakes at a beat, or a little off it, goes again at the next."""
    interval_s = interval_ms / 1e3
    assert next_beat((beat + phase) * interval_s, interval_s) == (beat + 1) * interval_s


def test_messages_of_a_crowd_are_fewer() -> None:
    beats = [beat_s(0.02, streams) for streams in (0, 1, 7, 8, 11, 12, 16, 500)]
    assert beats == [0.02, 0.02, 0.02, 0.04, 0.04, 0.06, 0.08, 0.08]
    assert beat_s(0.0, 500) == 0.0


def test_without_an_interval_messages_go_at_once() -> None:
    assert next_beat(12.3, 0.0) == 12.3


async def test_from_a_thread_everything_comes_in_order() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())

    def engine() -> None:
        for number in range(5000):
            mailbox.put(event(number))
        mailbox.put(LAST)

    thread = threading.Thread(target=engine)
    thread.start()
    got: list[Event] = []
    while not got or got[-1].finish is None:
        got += await mailbox.take(0.0)
    thread.join()
    assert ids(got) == list(range(5000))


async def test_the_last_one_ends_the_wait_for_more() -> None:
    loop = asyncio.get_running_loop()
    mailbox = Mailbox(loop)
    mailbox.put(event(1))
    taken = asyncio.create_task(mailbox.take(asyncio.get_running_loop().time() + HOUR_S))
    await asyncio.sleep(0)
    mailbox.put(event(2))
    assert not taken.done()
    await asyncio.to_thread(mailbox.put, LAST)
    assert ids(await taken) == [1, 2]


async def test_what_comes_before_its_time_comes_together() -> None:
    loop = asyncio.get_running_loop()
    mailbox = Mailbox(loop)
    taken = asyncio.create_task(mailbox.take(loop.time() + 0.01))
    await asyncio.sleep(0)
    for number in range(3):
        mailbox.put(event(number))
    assert ids(await taken) == [0, 1, 2]
    taken = asyncio.create_task(mailbox.take(loop.time() + 0.01))
    await asyncio.sleep(0)
    mailbox.put(event(3))
    assert ids(await taken) == [3]


async def test_the_loop_sleeps_until_a_message_is_due() -> None:
    loop = asyncio.get_running_loop()
    mailbox = Mailbox(loop)
    taken = asyncio.create_task(mailbox.take(loop.time() + HOUR_S))
    await asyncio.sleep(0)
    with patch.object(loop, "call_soon_threadsafe", side_effect=loop.call_soon_threadsafe) as wakes:
        mailbox.put(event(1))
        mailbox.put(event(2))
        assert not wakes.called
        mailbox.put(LAST)
        assert wakes.call_count == 1
    assert ids(await taken) == [1, 2]


async def test_nothing_counts_after_the_last_one() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    mailbox.put(event(1))
    mailbox.put(Event(error=Aborted("taken over")))
    mailbox.put(LAST)
    found = await mailbox.take(asyncio.get_running_loop().time() + HOUR_S)
    assert ids(found) == [1]
    assert isinstance(found[-1].error, Aborted)
