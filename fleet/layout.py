"""A fleet on paper: how many of which GPU, and how long its drafts are."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.costs import Machine
from fleet.gpus import Gpu
from fleet.workload import PlanConfig


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A pool of verifiers and the pool that drafts for it."""

    verifier: Gpu
    """What verifies."""
    verifiers: int
    """How many."""
    drafter: Gpu | None = None
    """What drafts; None decodes plainly."""
    drafters: int = 0
    """How many."""
    draft_tokens: int = 0
    """Length of a draft."""

    @property
    def cost_per_hour(self) -> float:
        """Price of all of it."""
        drafting = self.drafters * self.drafter.cost_per_hour if self.drafter else 0.0
        return self.verifiers * self.verifier.cost_per_hour + drafting

    def target(self, config: PlanConfig) -> Machine:
        """Returns the target on one verifier."""
        return Machine(gpu=self.verifier, model=config.target, assumptions=config.assumptions)

    def draft(self, config: PlanConfig) -> Machine | None:
        """Returns the draft model on one drafter; None where nothing drafts."""
        if self.drafter is None:
            return None
        return Machine(gpu=self.drafter, model=config.draft, assumptions=config.assumptions)
