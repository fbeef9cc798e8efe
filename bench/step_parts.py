"""Where the time of a model's step goes: by operation of torch, and what lies between them.

    python -m bench.step_parts [MODEL_DIRECTORY ...]

On CPU, with one thread and 150 tokens before the step. An operation's time is its own, without
those it calls; the profiler's work is in it, so shares say more than microseconds. What the
compiled decoder does is time of the pass itself. The last line is the step timed without the
profiler.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from bench.tables import Cells
from common.model.kv_cache import KvLease
from common.model.loader import load
from common.model.runner import Runner
from common.model.sampling import Row, sample
from common.model.segment import Segment
from common.sampling_params import SamplingParams
from launcher import models

KV_BYTES = 64 << 20
PREFIX_TOKENS = 150
ROWS = (1, 4, 8)
REPETITIONS = 60
SHOWN = 12
"""Operations in a table; the others are added up."""


def steps(directory: str) -> dict[int, Callable[[], object]]:
    """Return a greedy step of a model for each count of rows: a chain, sampled at every node."""
    runner = Runner(load(directory, device="cpu"), kv_bytes=KV_BYTES)
    lease = KvLease(runner.pool.blocks)
    assert lease.reserve(PREFIX_TOKENS + max(ROWS))
    runner.forward([Segment([5] * PREFIX_TOKENS, 0, lease.slots, wanted=[])])

    def step(count: int) -> list[int]:
        segment = Segment([7] * count, PREFIX_TOKENS, lease.slots, wanted=range(count))
        rows = [
            Row(params=SamplingParams(), position=PREFIX_TOKENS + at + 1) for at in range(count)
        ]
        with record_function("the pass, beside its operations"):
            logits = runner.forward([segment]).logits
        return sample(logits, rows).tolist()

    return {count: lambda count=count: step(count) for count in ROWS}  # type: ignore[misc]


def parts(step: Callable[[], object]) -> tuple[dict[str, float], float]:
    """Return microseconds of a step by operation, and between operations.

    Each is the least of some steps, profiled one by one: another program makes one longer, never
    shorter.
    """
    own: dict[str, float] = {}
    between = float("inf")
    for _ in range(REPETITIONS):
        step()  # the profiler leaves caches cold
        with profile(activities=[ProfilerActivity.CPU], acc_events=True) as found:
            started = time.perf_counter()
            step()
            whole = 1e6 * (time.perf_counter() - started)
        events = {event.key: float(event.self_cpu_time_total) for event in found.key_averages()}
        own = {key: min(us, own.get(key, us)) for key, us in events.items()}
        between = min(between, whole - sum(events.values()))
    return own, between


def table(name: str, count: int, step: Callable[[], object]) -> Cells:
    """Measure one step."""
    own, between = parts(step)
    seconds = []
    for _ in range(REPETITIONS):
        started = time.perf_counter()
        step()
        seconds.append(1e6 * (time.perf_counter() - started))
    first = sorted(own.items(), key=lambda item: -item[1])
    lines = [(key.removeprefix("aten::"), us) for key, us in first[:SHOWN]]
    lines.append(("other operations", sum(us for _, us in first[SHOWN:])))
    lines.append(("between operations", between))
    whole = sum(us for _, us in lines)
    rows = [[part, f"{us:.0f}", f"{100 * us / whole:.0f} %"] for part, us in lines]
    least, median = min(seconds), statistics.median(seconds)
    rows.append(["without the profiler: least (median)", f"{least:.0f} ({median:.0f})", ""])
    return Cells(f"{name}, rows: {count}", ("part", "µs", "share"), rows)


def main(directories: Sequence[str]) -> None:
    """Print the parts of models' steps, or of the bundled ones'."""
    torch.set_num_threads(1)
    bundled = models.choose(None, None)
    for directory in directories or [str(m) for m in (bundled.target, bundled.draft) if m]:
        for count, step in steps(directory).items():
            print(table(Path(directory).name, count, step).markdown(), end="\n\n")


if __name__ == "__main__":
    main(sys.argv[1:])
