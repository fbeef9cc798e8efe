"""Acceptance rules, by the name requests use."""

from __future__ import annotations

from verifier.acceptance.base import Rule
from verifier.acceptance.coupled import Coupled
from verifier.acceptance.rejection import Rejection
from verifier.acceptance.typical import Typical


def rules(typical: Typical) -> dict[str, Rule]:
    """Every rule.

    Args:
        typical: With its thresholds.
    """
    return {"coupled": Coupled(), "rejection": Rejection(), "typical": typical}
