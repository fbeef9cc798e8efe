"""Which drafters fit a target: those whose ids mean what its own do. And how many a request has."""

from __future__ import annotations

from typing import Protocol

MOST_DRAFTERS = 8
"""Drafters that a request may name: each costs its verifier a connection."""


class Model(Protocol):
    """What is known of a model's ids."""

    @property
    def tokenizer_fingerprint(self) -> str:
        """Of the tokenizer; empty where there is none."""

    @property
    def vocab_size(self) -> int:
        """Number of ids."""


def misfit(target: Model, drafter: Model) -> str | None:
    """Says why a drafter's tokens mean nothing to a target, or None where the pair fits.

    Equal vocabulary sizes are not enough: the same ids must stand for the same text. Nor do they
    matter where a tokenizer tells that: models of one family pad its ids to different numbers.
    """
    if drafter.tokenizer_fingerprint != target.tokenizer_fingerprint:
        return f"its tokenizer ({_name(drafter)}) differs from the target's ({_name(target)})"
    if not target.tokenizer_fingerprint and drafter.vocab_size != target.vocab_size:
        return f"its vocabulary has {drafter.vocab_size} ids, the target's {target.vocab_size}"
    return None


def _name(model: Model) -> str:
    return model.tokenizer_fingerprint[:12] or "none"
