"""How long a step of a model takes by its rows: the table by which the verifier chooses drafts.

    python -m bench.step_times MODEL DTYPE THREADS DEVICE MOST_THREADS [QUANTIZE]

prints it as one line of JSON, `{"steps": [[rows, seconds], ...], "in_one_call": seconds}`: the
latter is what a pass of one text takes without drafts where passes follow each other in one call,
or null.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, NamedTuple

from bench.arguments import at_least, ending_well
from bench.child import answer, ask
from common import logs

if TYPE_CHECKING:
    from common.model.runner import Runner

KV_BYTES = 128 << 20
BLOCK_TOKENS = 16
REPETITIONS = 3
CALLS, PASSES = 8, 16
"""Of one repetition, and of one of its calls."""

BEFORE = 128
"""Positions that a pass in a call reads, as those of the table do."""

Table = list[tuple[int, float]]
"""Seconds of a step by rows, rows rising."""


class Times(NamedTuple):
    """What steps take."""

    steps: Table
    """Each a call, with what the host does before and after it."""
    in_one_call: float | None
    """Seconds of a pass of one row where they follow each other in one call; None where the model
    makes one a call."""


def measure(
    model: str,
    dtype: str,
    threads: int,
    device: str = "cpu",
    *,
    most_threads: int = 0,
    quantize: str = "none",
) -> Times:
    """Measure in a process of its own; the least of some repetitions.

    Args:
        model: Its directory.
        dtype: torch dtype of the weights, or auto.
        threads: CPU threads of a pass.
        device: Where it runs.
        most_threads: Those of a pass of many rows, as a verifier's; 0 for no more.
        quantize: What weights are rounded to: none, int8, int4.

    Raises:
        StartupError: The model cannot be run.
    """
    found = ask("bench.step_times", model, dtype, str(threads), device, str(most_threads), quantize)
    return Times([(rows, seconds) for rows, seconds in found["steps"]], found["in_one_call"])


def main(
    model: str, dtype: str, own_threads: int, device: str, most_threads: int, quantize: str
) -> None:
    """Measure in this process and print the table."""
    import torch

    from common.model import threads
    from common.model.loader import load
    from common.model.runner import Runner
    from verifier import cost

    torch.set_num_threads(own_threads)
    loaded = load(
        model,
        dtype=dtype,  # type: ignore[arg-type]
        device=device,
        quantize=quantize,  # type: ignore[arg-type]
        most_threads=most_threads,
    )
    runner = Runner(loaded, kv_bytes=KV_BYTES, block_tokens=BLOCK_TOKENS)
    threads.choose(runner)
    tables, calls = [], []
    for _ in range(REPETITIONS):
        tables.append(cost.measure(runner).table)
        calls += [_in_one_call(runner) for _ in range(CALLS)] if runner.rolls else []
    steps = [(rows[0][0], min(second for _, second in rows)) for rows in zip(*tables, strict=True)]
    answer({"steps": steps, "in_one_call": min(calls, default=None)})


def _in_one_call(runner: Runner) -> float:
    """Seconds of each pass of one call."""
    import time

    from common.model.roll import RollOptions
    from common.model.segment import Segment

    before = min(BEFORE, runner.max_len - PASSES)
    lease = runner.pool.lease(before + PASSES)
    segment = Segment([0], before, lease.slots, wanted=[0])
    slots = lease.slots[before + 1 : before + PASSES][:, None]
    started = time.perf_counter()
    if runner.tells_of_each:
        passes = sum(1 for _ in runner.levels([segment], slots, RollOptions(), bool))
    else:
        passes = len(runner.roll([segment], slots, RollOptions()).ids)
    seconds = time.perf_counter() - started
    lease.release()
    return seconds / passes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.step_times")
    parser.add_argument("model")
    parser.add_argument("dtype")
    parser.add_argument("own_threads", metavar="threads", type=at_least(1))
    parser.add_argument("device")
    parser.add_argument("most_threads", type=at_least(0))
    parser.add_argument("quantize", nargs="?", default="none")
    given = parser.parse_args()
    sys.stdout = sys.stderr  # libraries print where they like
    logs.configure("bench", "warning")  # with why kernels are left out
    with ending_well():
        main(**vars(given))
