"""How long a step of a model takes by its rows: the table by which the verifier chooses drafts.

    python -m bench.step_times MODEL DTYPE THREADS DEVICE

prints it as one line of JSON, `[[rows, seconds], ...]`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bench.child import answer, ask

KV_BYTES = 128 << 20
BLOCK_TOKENS = 16
REPETITIONS = 3

Table = list[tuple[int, float]]
"""Seconds of a step by rows, rows rising."""


def measure(model: str, dtype: str, threads: int, device: str = "cpu") -> Table:
    """Measure in a process of its own; the least of some repetitions.

    Raises:
        StartupError: The model cannot be run.
    """
    found = ask("bench.step_times", model, dtype, str(threads), device)
    return [(rows, seconds) for rows, seconds in found]


def at(table: Sequence[tuple[int, float]], rows: int) -> float:
    """Return the seconds of the first entry with at least so many rows, or of the last."""
    return next((seconds for count, seconds in table if count >= rows), table[-1][1])


def main(model: str, dtype: str, threads: int, device: str) -> None:
    """Measure in this process and print the table."""
    import torch

    from common.model.loader import load
    from common.model.runner import Runner
    from verifier import cost

    torch.set_num_threads(threads)
    loaded = load(model, dtype=dtype, device=device)  # type: ignore[arg-type]
    runner = Runner(loaded, kv_bytes=KV_BYTES, block_tokens=BLOCK_TOKENS)
    tables = [cost.measure(runner) for _ in range(REPETITIONS)]
    answer([(rows[0][0], min(second for _, second in rows)) for rows in zip(*tables, strict=True)])


if __name__ == "__main__":
    sys.stdout = sys.stderr  # libraries print where they like
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
