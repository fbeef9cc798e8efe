"""What a fleet is to be planned for: a pair of models, traffic, a goal, and GPUs to choose from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.config import load
from common.errors import ConfigError
from common.rate_model import COVERAGE
from fleet.gpus import LEAST, MOST


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """What decides how long a model's step takes, and what its cache holds."""

    params_billion: float
    """Parameters that a token uses, in billions: all of a dense model, the active ones of a
    mixture of experts."""
    total_params_billion: float | None = None
    """Parameters that memory holds, in billions: all of a mixture of experts. None is
    `params_billion`."""
    layers: int
    """Decoder layers."""
    kv_heads: int
    """Key/value heads of a layer."""
    head_size: int
    """Size of one head."""
    bytes_per_param: float = 2.0
    """2 for bfloat16, 1 for 8-bit weights."""
    kv_bytes_per_value: float = 2.0
    """Bytes of one number in the key/value cache."""

    @property
    def weight_bytes(self) -> float:
        """Bytes read by every step."""
        return 1e9 * self.params_billion * self.bytes_per_param

    @property
    def stored_bytes(self) -> float:
        """Bytes of memory that all weights take."""
        return 1e9 * (self.total_params_billion or self.params_billion) * self.bytes_per_param

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of keys and values for one token."""
        return 2 * self.layers * self.kv_heads * self.head_size * self.kv_bytes_per_value


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What comes in."""

    requests_per_s: float = 10.0
    """Requests that arrive in a second, on average, at the busiest time that counts."""
    prompt_tokens: int = 512
    """Mean length of a prompt that is not cached."""
    output_tokens: int = 256
    """Mean length of an output; at least 2."""

    @property
    def tokens_per_s(self) -> float:
        """Output tokens a second."""
        return self.requests_per_s * self.output_tokens

    @property
    def context_tokens(self) -> float:
        """Mean length of a sequence while it runs."""
        # Of outputs that are evenly spread from half the mean to one and a half times it.
        return self.prompt_tokens + self.output_tokens * 13 / 24


@dataclass(frozen=True, kw_only=True)
class Goal:
    """How fast it must be, on average."""

    token_ms: float = 30.0
    """Most milliseconds for an output token after the first."""
    first_token_ms: float | None = None
    """Most milliseconds to the first token; none does not ask."""
    most_load: float = 0.8
    """Most of what the verifiers could carry that may be used, over 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """How near real steps come to what a GPU could do. Compare with `paceline fleet status`."""

    memory_efficiency: float = 0.7
    """Share of the memory bandwidth that a step reaches."""
    compute_efficiency: float = 0.5
    """Share of the arithmetic that a step reaches."""
    overhead_ms: float = 1.0
    """Milliseconds of every step that neither explains."""
    memory_use: float = 0.9
    """Share of the memory that weights and cache may take."""
    most_sequences: int = 64
    """Most sequences in a verifier's batch."""
    coverage: float = COVERAGE
    """Chance that the token after a broken draft was drafted for ahead."""
    fanout: int = 3
    """Tokens guessed ahead after each accepted length; the verifiers' `engine.draft_fanout`."""
    drafter_context_tokens: int = 0
    """How far back a drafter looks; its `engine.context_tokens`. 0 for all of a text."""


@dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """All that a plan is made from."""

    # Shapes of Llama-3.1-8B and Qwen3-0.6B, as examples of a pair's sizes.
    target: ModelSize = field(
        default_factory=lambda: ModelSize(params_billion=8.0, layers=32, kv_heads=8, head_size=128)
    )
    """The target."""
    draft: ModelSize = field(
        default_factory=lambda: ModelSize(params_billion=0.6, layers=28, kv_heads=8, head_size=128)
    )
    """The draft model."""
    acceptance: float = 0.7
    """Chance that a draft token is right where those before it were; `paceline train measure` and
    `paceline fleet pairs` tell it."""
    round_trip_ms: float = 1.0
    """Milliseconds from verifier to drafter and back."""
    most_draft_tokens: int = 8
    """Longest draft to consider."""
    traffic: Traffic = field(default_factory=Traffic)
    """What comes in."""
    goal: Goal = field(default_factory=Goal)
    """How fast it must be."""
    verifiers: tuple[str, ...] = ("A100-80", "H100")
    """GPU types to verify on."""
    drafters: tuple[str, ...] = ("T4", "L4", "A10")
    """GPU types to draft on."""
    gpu: tuple[str, ...] = ()
    """Prices or types of your own: "T4=0.35", "mine=24/600/125/0.9"."""
    most: tuple[str, ...] = ()
    """How many there are of a type, "T4=8"; of others up to 4096 in each tier are considered."""
    assumptions: Assumptions = field(default_factory=Assumptions)
    """How fast steps are."""

    def __post_init__(self) -> None:
        for name, size in (("target", self.target), ("draft", self.draft)):
            _positive(size, name)
            if size.stored_bytes < size.weight_bytes:
                raise ConfigError(f"{name}.total_params_billion: must be at least params_billion")
        for name, group in (("traffic", self.traffic), ("assumptions", self.assumptions)):
            _positive(group, name)
        _positive(self.goal, "goal")
        _within("acceptance", self.acceptance, 0.0, 1.0)
        _within("goal.most_load", self.goal.most_load, 0.0, 1.0)
        for name in ("memory_efficiency", "compute_efficiency", "memory_use", "coverage"):
            _within(f"assumptions.{name}", getattr(self.assumptions, name), 0.0, 1.0)
        _within("round_trip_ms", self.round_trip_ms, 0.0, 60_000.0)
        _within("most_draft_tokens", self.most_draft_tokens, 0, 64)
        _within("traffic.output_tokens", self.traffic.output_tokens, 2, 1_000_000)
        if not self.verifiers:
            raise ConfigError("verifiers: must name at least one GPU type")

    @property
    def drafter_context_tokens(self) -> float:
        """Mean length of what a drafter holds of a sequence."""
        whole, most = self.traffic.context_tokens, self.assumptions.drafter_context_tokens
        return min(whole, most) if most else whole

    @property
    def limits(self) -> dict[str, int]:
        """How many there are of each type that is limited.

        Raises:
            ConfigError: An entry has another form.
        """
        found = {}
        for text in self.most:
            name, _, count = text.partition("=")
            if not count.isdecimal():
                raise ConfigError(f"most: must be NAME=COUNT as in T4=8, got {text!r}")
            found[name] = int(count)
        return found


def load_plan(file: Path | None, given: Mapping[str, Any]) -> PlanConfig:
    """Reads a plan's input from a YAML file and from what is given by key; the latter wins.

    Args:
        file: The file; None for none.
        given: Values, or lists of them, by their key in the file, "traffic.requests_per_s"; None
            is not given, but an empty list is.

    Raises:
        ConfigError: A name is unknown or a value is not allowed; says which.
    """
    argv = [] if file is None else ["--config", str(file)]
    for key, value in given.items():
        flag = "--" + key.replace("_", "-")
        for each in value or [""] if isinstance(value, list) else [value]:
            argv += [] if each is None else [flag, str(each)]
    return load(PlanConfig, argv, prog="fleet_plan", description="", environ={})


def _positive(group: Any, name: str) -> None:
    for key, value in vars(group).items():
        if value is None:
            continue
        from_zero = (name, key) in _FROM_ZERO
        if not (LEAST <= value <= MOST or (from_zero and value == 0)):
            zero = "0 or " if from_zero else ""
            raise ConfigError(
                f"{name}.{key}: must be {zero}from {LEAST:g} to {MOST:g}, got {value}"
            )


_FROM_ZERO = {
    ("assumptions", name) for name in ("overhead_ms", "coverage", "drafter_context_tokens")
}


def _within(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ConfigError(f"{name}: must be in [{least:g}, {most:g}], got {value}")
