"""Tasks of one owner: held while they run, and waited for at its end, however they end."""

import asyncio

from common.tasks import Tasks


async def test_what_was_started_is_finished() -> None:
    tasks, done = Tasks(), []

    async def work(name: str) -> str:
        await asyncio.sleep(0)
        done.append(name)
        return name

    async def fails() -> None:
        raise ValueError

    first = tasks.start(work("a"))
    tasks.start(fails())
    assert await first == "a"
    tasks.start(work("b"))
    await tasks.finish()
    assert done == ["a", "b"]
    assert not tasks, "what is done is let go"


async def test_what_has_no_end_is_cancelled() -> None:
    tasks = Tasks()
    task = tasks.start(asyncio.Event().wait())
    await tasks.finish(cancel=True)
    assert task.cancelled()
    assert not tasks
