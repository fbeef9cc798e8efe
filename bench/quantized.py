"""What rounded weights cost in quality and gain in time, beside the weights as they are stored.

    python -m bench.quantized TARGET [DRAFT] [--text FILE ...]

Perplexity is the target's on the bundled prompts and on the files' text. Agreement is the share of
the target's greedy tokens (64 for each bundled prompt) that the drafter's likeliest one equals.
Both are the same on a busy machine. Times are of one thread, the least and the median of
repetitions that take turns.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import torch

from bench import prompts
from bench.arguments import ending_well
from bench.tables import Cells
from common.errors import StartupError, reason
from common.model.loader import load
from common.model.quantized import Quantize
from common.model.runner import Runner
from common.model.segment import Segment

KINDS: tuple[Quantize, ...] = get_args(Quantize)
KV_BYTES = 64 << 20
PIECE_TOKENS = 512
"""Texts are scored in pieces of so many tokens."""
NEW_TOKENS = 64
PREFIX_TOKENS = 150
"""Positions before a step that is timed."""
ROWS = (1, 4, 8, 16)
REPETITIONS = 40


def runners(directory: str) -> dict[str, Runner]:
    """Load a model in every kind."""
    return {
        kind: Runner(load(directory, device="cpu", quantize=kind), kv_bytes=KV_BYTES)
        for kind in KINDS
    }


def logits_of(runner: Runner, ids: Sequence[int]) -> torch.Tensor:
    """Return the logits after each token of a text. # float32 [N, V]"""
    lease = runner.pool.lease(len(ids))
    output = runner.forward([Segment(ids, 0, lease.slots, wanted=range(len(ids)))])
    lease.release()
    return output.logits.float()


def perplexity(runner: Runner, texts: Sequence[Sequence[int]]) -> float:
    """Return the perplexity of the texts' tokens but for the first of each piece."""
    loss, count = 0.0, 0
    for text in texts:
        for start in range(0, len(text), PIECE_TOKENS):
            piece = torch.tensor(text[start : start + PIECE_TOKENS])
            if len(piece) < 2:
                continue
            logits = logits_of(runner, piece.tolist())[:-1]
            loss += torch.nn.functional.cross_entropy(logits, piece[1:], reduction="sum").item()
            count += len(piece) - 1
    return math.exp(loss / count)


def greedy(runner: Runner, prompt: Sequence[int]) -> list[int]:
    """Return a prompt and its likeliest continuation."""
    ids = [*prompt]
    lease = runner.pool.lease(len(ids) + NEW_TOKENS)
    rows, start = ids, 0
    for _ in range(NEW_TOKENS):
        segment = Segment(rows, start, lease.slots, wanted=[len(rows) - 1])
        rows, start = [int(runner.forward([segment]).logits.argmax())], len(ids)
        ids += rows
        if rows[0] in runner.loaded.eos_token_ids:
            break
    lease.release()
    return ids


def agreement(draft: Runner, texts: Sequence[tuple[int, Sequence[int]]]) -> float:
    """Return the share of tokens after the prompt, given its length, that the drafter guesses."""
    right = total = 0
    for prompt_tokens, ids in texts:
        guesses = logits_of(draft, ids[:-1]).argmax(-1)[prompt_tokens - 1 :]
        right += int((guesses == torch.tensor(ids[prompt_tokens:])).sum())
        total += len(guesses)
    return right / total


def read_text(file: Path) -> str:
    """Read a file of --text.

    Raises:
        StartupError: It cannot be read, or is not text.
    """
    try:
        return file.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise StartupError(f"{file}: cannot be read: {reason(error)}") from error


def quality(target: str, draft: str | None, files: Sequence[Path]) -> Cells:
    """Measure a pair."""
    tokenizer = prompts.tokenizer_of(Path(target))
    beginnings = prompts.encode_here(prompts.load(), tokenizer)
    texts = beginnings + [tokenizer.encode(read_text(file)) for file in files]
    targets, drafts = runners(target), runners(draft) if draft else {}
    rows = []
    for kind, runner in targets.items():
        written = [(len(prompt), greedy(runner, prompt)) for prompt in beginnings]
        shares = [f"{100 * agreement(one, written):.1f} %" for one in drafts.values()]
        rows.append([kind, f"{perplexity(runner, texts):.3f}", *shares])
    return Cells("Quality", ("target", "perplexity", *(f"drafter {kind}" for kind in drafts)), rows)


def times(model: str) -> Cells:
    """Time steps of a model in every kind, in turns."""
    loaded = runners(model)
    room = PREFIX_TOKENS + max(ROWS)
    leases = {kind: runner.pool.lease(room) for kind, runner in loaded.items()}
    for kind, runner in loaded.items():
        runner.forward([Segment([5] * PREFIX_TOKENS, 0, leases[kind].slots, wanted=[])])
    rows = []
    for count in ROWS:
        found: dict[str, list[float]] = {kind: [] for kind in loaded}
        for _ in range(REPETITIONS):
            for kind, runner in loaded.items():
                step = Segment([7] * count, PREFIX_TOKENS, leases[kind].slots, wanted=range(count))
                started = time.perf_counter()
                runner.forward([step])
                found[kind].append(1e3 * (time.perf_counter() - started))
        cells = [f"{min(one):.2f} ({statistics.median(one):.2f})" for one in found.values()]
        none, *rounded = (min(found[kind]) for kind in KINDS)
        rows.append([str(count), *cells, *(f"{none / least:.2f}" for least in rounded)])
    gains = (f"{KINDS[0]} / {kind}" for kind in KINDS[1:])
    head = ("rows", *(f"{kind}, ms" for kind in loaded), *gains)
    return Cells(f"{Path(model).name}, least (median)", head, rows)


def main(arguments: Any) -> None:
    """Print the tables."""
    torch.set_num_threads(1)
    print(quality(arguments.target, arguments.draft, arguments.text).markdown(), end="\n\n")
    for model in (arguments.target, arguments.draft):
        if model:
            print(times(model).markdown(), end="\n\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.quantized")
    parser.add_argument("target")
    parser.add_argument("draft", nargs="?")
    parser.add_argument("--text", type=Path, nargs="*", default=[])
    with ending_well():
        main(parser.parse_args())
