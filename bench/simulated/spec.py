"""What a simulated worker is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, Self


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """One worker."""

    name: str
    """To tell it from the others."""
    tier: Literal["verifier", "drafter"]
    """What it is."""
    model: str
    """Directory of its model."""
    pool: str = ""
    """Pool it belongs to."""
    step_s: float
    """Least time of a pass of its model, in seconds."""
    session_s: float = 0.0
    """What each further session in the pass adds to that, in seconds."""
    acceptance: float = 1.0
    """Share of a drafter's tokens that are left as its model chose them; the others are made
    wrong. With the verifier's own model that is the chance that a draft token is right."""
    round_trip_s: Mapping[str, float] = field(default_factory=dict)
    """What a verifier's messages to a drafter and their answers take longer, in seconds, by the
    drafter's address."""
    max_running: int = 32
    """Most sequences in a verifier's batch."""

    def line(self) -> str:
        """Returns it as one line of text."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, line: str) -> Self:
        """Reads such a line."""
        return cls(**json.loads(line))
