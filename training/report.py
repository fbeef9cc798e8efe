"""`paceline train measure`: acceptance on held-out prompts that have chosen nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.model import medusa_checkpoint
from training import acceptance, held_out
from training.choose_tree import load_heads
from training.encode import Encoder
from training.held_out import Domain, HeldOutConfig
from training.models import load_draft, load_model

_LENGTHS = (3, 5, 7)


def run(
    *,
    target: Path,
    draft: Path | None,
    heads: Path | None,
    files: Sequence[Path],
    prompts: int,
    device: str,
) -> list[str]:
    """Measures a drafter, heads, or both.

    Args:
        target: Directory of the model.
        draft: Directory of a drafter.
        heads: Directory of Medusa heads.
        files: Files of documents, one a domain.
        prompts: Held-out prompts of each domain; half of them are used.
        device: Where to compute.

    Returns:
        Lines to print, a table each.
    """
    model, encoder = load_model(target).to(device), Encoder(target)
    drafter = None if draft is None else load_draft(draft, model).to(device)
    domains = held_out.load(files, model, encoder, HeldOutConfig(prompts=prompts))
    lines = []
    if drafter is not None:
        lines += _draft_lines(drafter, domains)
    if heads is not None:
        lines += _head_lines(model, heads, domains)
    return lines


def _draft_lines(draft: Any, domains: Sequence[Domain]) -> list[str]:
    lines = ["drafter: domain, share of tokens guessed, tokens a pass for K=3, 5, 7"]
    for domain in domains:
        found = acceptance.chain(draft, domain.reporting, _LENGTHS)
        tokens = "  ".join(f"{found.tokens[k]:.2f}" for k in _LENGTHS)
        lines.append(f"{domain.name:<12} {found.agreement:.3f}  {tokens}")
    return lines


def _head_lines(model: Any, heads: Path, domains: Sequence[Domain]) -> list[str]:
    lm_head = model.get_output_embeddings().weight
    module = load_heads(heads, lm_head)
    tree = medusa_checkpoint.load(heads, lm_head=lm_head).tree or ()
    lines = [f"heads: domain, tokens a pass with the tree of {len(tree)} nodes, top-1 of each head"]
    for domain in domains:
        found = acceptance.ranks(model, module, domain.reporting, lm_head)
        tokens = acceptance.tree_tokens(found, tree)
        single = " ".join(f"{v:.3f}" for v in acceptance.accuracies(found, 1)[:, 0].tolist())
        lines.append(f"{domain.name:<12} {tokens:.2f}  {single}")
    return lines
