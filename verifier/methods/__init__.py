"""Speculation methods, by the name requests use."""

from __future__ import annotations

from collections.abc import Callable

from verifier.config import EngineConfig
from verifier.methods.base import Proposer
from verifier.methods.draft import DraftProposer, LinkSource
from verifier.methods.plain import PlainProposer

METHODS: dict[str, Callable[[EngineConfig, LinkSource], Proposer]] = {
    "plain": lambda config, links: PlainProposer(),
    "draft": lambda config, links: DraftProposer(links, config.draft_tokens),
}
"""Makes each method's proposer; a new method adds its line here."""
