"""Rotary embeddings: by how much a head is turned at each position."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

_SETTINGS: dict[str, set[str]] = {
    "default": set(),
    "linear": {"factor"},
    "llama3": {
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    },
    "yarn": {"factor", "original_max_position_embeddings"},
}
"""By kind, what it has beside its base."""

_MAY_HAVE: dict[str, set[str]] = {
    "yarn": {
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    }
}
"""By kind, what it has besides, or has not."""


class RotarySettings(NamedTuple):
    """What a model's `config.json` says of them, in whichever form."""

    kind: str
    """Their type."""
    base: float
    """Of the angles' powers."""
    others: dict[str, Any]
    """What it has beside these."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> RotarySettings:
        """Those of a model whose heads are all turned alike, and whole.

        Raises:
            ValueError: In two forms at once, or in none that is known.
            KeyError: It names no base.
        """
        new, old = config.get("rope_parameters"), config.get("rope_scaling")
        if new and old:
            raise ValueError("rope_parameters beside rope_scaling")
        said = new or old or {}
        if not isinstance(said, Mapping):
            raise ValueError("must be an object")
        others = dict(said)
        kind = others.pop("type", "default")
        kind = str(others.pop("rope_type", kind))
        base = others.pop("rope_theta") if "rope_theta" in others else config["rope_theta"]
        if others.get("partial_rotary_factor") == 1:  # whole, as without
            del others["partial_rotary_factor"]
        return cls(kind, base, others)


class Rotary(NamedTuple):
    """By how much a head is turned at a position."""

    frequencies: Tensor
    """Radians a position, float32 `[head_size / 2]`."""
    factor: Tensor
    """What cosines and sines are multiplied by, float32 `[head_size / 2]`."""

    @classmethod
    def configured(cls, config: Mapping[str, Any], size: int) -> Rotary:
        """As a model's `config.json` says, and as `transformers` computes it.

        Args:
            config: See `RotarySettings.of`.
            size: Numbers of a head.

        Raises:
            ValueError: In two forms, of a kind that needs more, or less, or odd; says which.
            KeyError: It names no base.
        """
        settings = RotarySettings.of(config)
        names = set(settings.others)
        if names - _MAY_HAVE.get(settings.kind, set()) != _SETTINGS.get(settings.kind):
            what = f"rotary embeddings of type {settings.kind} with {sorted(names)}"
            raise ValueError(f"{what}: not supported")
        try:
            made = cls.of_some(*_angles(settings, size), size)
        except Exception as error:  # settings may be anything
            raise ValueError(f"cannot be used: {type(error).__name__}: {error}") from error
        if not all(bool(torch.isfinite(part).all()) for part in made):
            raise ValueError("out of range")
        return made

    @classmethod
    def of_some(cls, frequencies: Tensor, factor: float, size: int) -> Rotary:
        """Where the last pairs of a head may stay as they are.

        Args:
            frequencies: Of its first pairs, radians a position, float32 `[turned / 2]`.
            factor: What their cosines and sines are multiplied by.
            size: Numbers of a head.
        """
        still = frequencies.new_zeros(size // 2 - len(frequencies))
        factors = torch.full_like(frequencies, factor)
        return cls(torch.cat((frequencies, still)), torch.cat((factors, still + 1)))

    def to(self, device: torch.device) -> Rotary:
        """The same elsewhere."""
        return Rotary(*(part.to(device) for part in self))

    def table(self, positions: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines, float32 `[positions, head_size / 2]`: both halves of a head are turned
        alike."""
        places = torch.arange(positions, device=self.frequencies.device)
        angles = places[:, None].float() * self.frequencies
        cos = angles.cos().mul_(self.factor)
        return cos, angles.sin_().mul_(self.factor)  # in place: of long models it is much


def turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads turned as `rotate_half` does, float32.

    Args:
        heads: `[N, heads, D]`.
        cos: Of their rows' positions, `[N, 1, D / 2]`.
        sin: The same.
    """
    first, second = heads.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _angles(settings: RotarySettings, size: int) -> tuple[Tensor, float]:
    """Radians a position, `[size / 2]`, and what cosines and sines are multiplied by."""
    kind, base, others = settings
    frequencies = 1.0 / (base ** (torch.arange(0, size, 2, dtype=torch.float) / size))
    if kind == "yarn":
        return _yarn(base, size, others)
    if kind == "linear":
        frequencies = frequencies / others["factor"]
    elif kind == "llama3":
        frequencies = _stretched(frequencies, others)
    return frequencies, 1.0


def _stretched(frequencies: Tensor, settings: Mapping[str, Any]) -> Tensor:
    """Llama 3.1's: long waves are stretched, short ones are not, and those between in part."""
    factor, original = settings["factor"], settings["original_max_position_embeddings"]
    low, high = settings["low_freq_factor"], settings["high_freq_factor"]
    waves = 2 * math.pi / frequencies
    stretched = torch.where(waves > original / low, frequencies / factor, frequencies)
    share = (original / waves - low) / (high - low)
    between = (1 - share) * stretched / factor + share * stretched
    inside = ~(waves < original / high) & ~(waves > original / low)
    return torch.where(inside, between, stretched)


def _yarn(base: float, size: int, settings: Mapping[str, Any]) -> tuple[Tensor, float]:
    """YaRN's (Peng et al., 2023): pairs that turn often stay, those that turn seldom are stretched,
    and those between in part; what cosines and sines are multiplied by."""
    factor, original = settings["factor"], settings["original_max_position_embeddings"]

    def pair(turns: float) -> float:
        """Which one turns so often in the original length."""
        return size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    first, last = pair(settings.get("beta_fast") or 32), pair(settings.get("beta_slow") or 1)
    if settings.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    if first == last:
        last += 0.001
    powers = base ** (torch.arange(0, size, 2, dtype=torch.float) / size)
    places = torch.arange(size // 2, dtype=torch.float)
    stay = 1 - ((places - first) / (last - first)).clamp(0, 1)
    frequencies = 1.0 / (factor * powers) * (1 - stay) + 1.0 / powers * stay
    scale = settings.get("attention_factor")
    if scale is not None:
        return frequencies, float(scale)
    one, other = settings.get("mscale"), settings.get("mscale_all_dim")
    if one and other:
        return frequencies, _louder(factor, one) / _louder(factor, other)
    return frequencies, _louder(factor, 1)


def _louder(factor: float, part: float) -> float:
    """By how much scores grow with the length that is stretched by a factor."""
    return 1.0 if factor <= 1 else 0.1 * part * math.log(factor) + 1.0
