"""`paceline train tree`: chooses a tree for heads by what they hit and what a pass costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from common.errors import InvalidArgument
from common.model.medusa import checkpoint as medusa_checkpoint
from training import acceptance, held_out, step_time, tree
from training.encode import Encoder
from training.errors import writing
from training.heads import Heads
from training.models import load_model
from training.tree import Choice, PathWorth


def run(
    *,
    target: Path,
    heads: Path,
    files: Sequence[Path],
    step_ms: Mapping[int, float],
    most_rows: int,
    prompts: int,
    device: str,
) -> list[str]:
    """Chooses, writes the tree into the heads' `medusa.json`, and says why.

    Args:
        target: Directory of the model.
        heads: Directory of the heads, in our layout.
        files: Files of documents, one a domain.
        step_ms: Time of a pass by its rows, ms; measured where empty.
        most_rows: Largest tree, the root included.
        prompts: Held-out prompts of each domain.
        device: Where to compute.

    Returns:
        Lines to print: accuracy by head and rank, and the sizes considered.
    """
    facts = medusa_checkpoint.read_facts(heads)
    found, module = measured(target, heads, files, prompts=prompts, device=device)
    worth = PathWorth(found)
    if not step_ms:
        paths = tree.of_size(worth, most_rows - 1)
        rows = [count for count in step_time.ROWS if count <= most_rows]
        step_ms = step_time.measure(
            target,
            module.weights(),
            lambda nodes: paths[:nodes],
            device=device,
            rows=rows,
        )
    offered = tree.choices(worth, step_ms, most_rows)
    best = max(offered, key=lambda choice: choice.tokens_per_s)
    chosen = sorted(best.tree, key=lambda path: (len(path), path))
    with writing(heads):
        medusa_checkpoint.write_facts(heads, {**facts, "tree": chosen})
    return [*_accuracy_lines(worth), *_size_lines(offered, best, step_ms)]


def measured(
    target: Path, heads: Path, files: Sequence[Path], *, prompts: int, device: str
) -> tuple[list[acceptance.Found], Heads]:
    """Ranks along the choosing half of held-out texts, a domain each; and the heads."""
    model = load_model(target).to(device)
    lm_head = model.get_output_embeddings().weight
    module = Heads.of(medusa_checkpoint.load(heads, lm_head=lm_head), lm_head)
    domains = held_out.load(files, model, Encoder(target, model), prompts)
    return [acceptance.ranks(model, module, d.choosing, lm_head) for d in domains], module


def parsed(table: str) -> dict[int, float]:
    """Reads "1:3.2,8:4.5": rows and milliseconds; nothing of an empty text.

    Raises:
        InvalidArgument: Of another form, or one entry alone.
    """
    try:
        pairs = [entry.split(":") for entry in table.split(",") if entry]
        found = {int(rows): float(ms) for rows, ms in pairs}
    except ValueError as error:
        raise InvalidArgument("--step-ms", 'must be like "1:3.2,8:4.5,32:9"') from error
    if any(rows < 1 or not ms > 0 for rows, ms in found.items()):
        raise InvalidArgument("--step-ms", "rows start at 1, times are above 0")
    if len(found) == 1:
        raise InvalidArgument("--step-ms", "must have two entries or more, to read between them")
    return found


def _accuracy_lines(worth: PathWorth) -> list[str]:
    lines = ["head  share of tokens at rank 0, 1, …"]
    for head in range(worth.num_heads):
        shares = " ".join(f"{share:.3f}" for share in worth.ranks_of(head))
        lines.append(f"{head:>4}  {shares}")
    return lines


def _size_lines(offered: Sequence[Choice], best: Choice, step_ms: Mapping[int, float]) -> list[str]:
    lines = ["rows  tokens a pass  ms a pass  tokens/s"]
    for choice in offered:
        rows = len(choice.tree) + 1
        if rows in step_ms or choice is best:
            mark = "  chosen" if choice is best else ""
            lines.append(
                f"{rows:>4}  {choice.tokens:>13.3f}  {choice.step_ms:>9.2f}"
                f"  {choice.tokens_per_s:>8.0f}{mark}"
            )
    return lines
