"""What this machine can do at most: bytes read and operations done in a second.

    python -m bench.machine BYTES DTYPE THREADS

prints `{"bytes_per_s": …, "operations_per_s": …}`: reading so many bytes again and again, which
may come from a cache where they fit, and products of large matrices.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.child import answer, ask

LEAST_S = 0.05
"""A repetition reads or computes for at least so long."""

REPETITIONS = 7
MATRIX = 1024


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of a machine, with some number of threads."""

    bytes_per_s: float
    """Read."""

    operations_per_s: float
    """Multiplications and additions, each counted."""


def measure(working_set_bytes: int, dtype: str, threads: int) -> Limits:
    """Measure on CPU, in a process of its own; the best of some repetitions.

    Args:
        working_set_bytes: How much is read, again and again.
        dtype: torch dtype of the products.
        threads: CPU threads.
    """
    return Limits(**ask("bench.machine", str(working_set_bytes), dtype, str(threads)))


def main(working_set_bytes: int, dtype: str, threads: int) -> None:
    """Measure in this process and print what was found."""
    import torch

    torch.set_num_threads(threads)
    data = torch.ones(max(working_set_bytes // 4, 1))
    square = torch.ones(MATRIX, MATRIX, dtype=getattr(torch, dtype))
    read = min(best(lambda: data.sum()), best(lambda: data.dot(data)))
    # The second reads its one argument twice, from a cache the second time: still one reading.
    answer(
        {
            "bytes_per_s": data.numel() * 4 / read,
            "operations_per_s": 2 * MATRIX**3 / best(lambda: square @ square),
        }
    )


def best(work: Callable[[], object]) -> float:
    """Return the least seconds that one call takes."""
    work()
    started = time.perf_counter()
    work()
    times = max(1, round(LEAST_S / max(time.perf_counter() - started, 1e-9)))
    found = []
    for _ in range(REPETITIONS):
        started = time.perf_counter()
        for _ in range(times):
            work()
        found.append((time.perf_counter() - started) / times)
    return min(found)


if __name__ == "__main__":
    sys.stdout = sys.stderr
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
