"""What this machine or its GPU can do at most: bytes read and operations done in a second.

    python -m bench.machine BYTES DTYPE THREADS DEVICE

prints `{"bytes_per_s": …, "operations_per_s": …, "gpu": …}`: reading so many bytes again and
again, which may come from a cache where they fit, and products of large matrices.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bench.arguments import ending_well
from bench.child import answer, ask

MOST_NUMBERS = 1 << 30
"""Read at once: more than any cache holds, and what a product of vectors takes on a GPU."""

LEAST_S = 0.05
"""A repetition reads or computes for at least so long."""

REPETITIONS = 7
MATRIX = {"cpu": 1024, "cuda": 8192}
"""Rows and columns of what is multiplied, by kind of device."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of a machine with some number of threads, or of a GPU."""

    bytes_per_s: float
    """Read."""

    operations_per_s: float
    """Multiplications and additions, each counted."""

    gpu: str = ""
    """What it is called; empty for a machine."""


def measure(working_set_bytes: int, dtype: str, threads: int, device: str = "cpu") -> Limits:
    """Measure in a process of its own; the best of some repetitions.

    Args:
        working_set_bytes: How much is read, again and again.
        dtype: torch dtype of the products.
        threads: CPU threads.
        device: torch's, or auto.
    """
    return Limits(**ask("bench.machine", str(working_set_bytes), dtype, str(threads), device))


def main(working_set_bytes: int, dtype: str, threads: int, device: str) -> None:
    """Measure in this process and print what was found."""
    os.environ["ONEDNN_MAX_CPU_ISA"] = "DEFAULT"  # layers want less, which are not run here
    import torch

    from common.model.loader import device_name

    torch.set_num_threads(threads)
    where = torch.device(device_name(device))
    size = MATRIX[where.type]
    data = torch.ones(min(max(working_set_bytes // 4, 1), MOST_NUMBERS), device=where)
    # A processor without products of a type widens it: then those of float32 are the limit.
    types = {getattr(torch, dtype), torch.float32}
    squares = [torch.ones(size, size, dtype=each, device=where) for each in types]
    wait = partial(torch.cuda.synchronize, where) if where.type == "cuda" else lambda: None
    # The dot reads its one argument twice, from a cache the second time: still one reading.
    read = min(best(lambda: data.sum(), wait), best(lambda: data.dot(data), wait))
    multiplied = min(best(partial(torch.matmul, square, square), wait) for square in squares)
    answer(
        {
            "bytes_per_s": data.numel() * 4 / read,
            "operations_per_s": 2 * size**3 / multiplied,
            "gpu": torch.cuda.get_device_name(where) if where.type == "cuda" else "",
        }
    )


def best(work: Callable[[], object], wait: Callable[[], object] = lambda: None) -> float:
    """Return the least seconds that one call takes.

    Args:
        work: What is called, many times.
        wait: Called where all of it has to be done.
    """
    work()
    wait()
    started = time.perf_counter()
    work()
    wait()
    times = max(1, round(LEAST_S / max(time.perf_counter() - started, 1e-9)))
    found = []
    for _ in range(REPETITIONS):
        started = time.perf_counter()
        for _ in range(times):
            work()
        wait()
        found.append((time.perf_counter() - started) / times)
    return min(found)


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit("usage: python -m bench.machine BYTES DTYPE THREADS DEVICE")
    sys.stdout = sys.stderr
    with ending_well():
        main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])
