"""Experts of a model's layers, as its files have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from common.model.checkpoint.kinds import Written
from common.model.checkpoint.settings import Config, count, insist, is_set
from common.model.llama import Linear, Mixture, Mlp

_SHARED = ("gate_proj", "up_proj", "down_proj")
"""Products of what all rows take."""


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Those of each layer that has some."""

    layers: frozenset[int]
    """Which have."""
    written: Written
    """How files have them."""
    hidden: int
    """Numbers of a row."""
    number: int
    """How many there are to choose from."""
    inner: int
    """Numbers between the two products of each."""
    shared: int
    """Numbers between those of what all rows take; 0 without."""
    chosen: int
    """How many a row takes."""
    summed: bool
    """Whether the weights of those chosen add up to one."""

    @classmethod
    def configured(cls, written: Written, config: Config, depth: int) -> Experts:
        """As a configuration says.

        Args:
            written: How files have them.
            config: Of the model.
            depth: How many layers it has.

        Raises:
            ValueError: Not known to be read right; says what. Odd values may raise anything.
        """
        step, without = count(config.get("decoder_sparse_step", 1)), config.get("mlp_only_layers")
        insist(without is None or isinstance(without, list), "mlp_only_layers")
        numbers = [config[name] for name in written.numbers if name in config]
        insist(len(numbers) == 1, " or ".join(written.numbers))
        found = cls(
            layers=frozenset(range(step - 1, depth, step)).difference(without or ()),
            written=written,
            hidden=count(config["hidden_size"]),
            number=count(numbers[0]),
            inner=count(config[written.inner]),
            shared=count(config[written.shared]) if written.shared else 0,
            chosen=count(config["num_experts_per_tok"]),
            summed=not written.summed or is_set(config, written.summed),
        )
        insist(found.chosen <= found.number, "num_experts_per_tok")
        insist(found.inner % 2 == 0, written.inner)  # kernels take no others
        return found

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of a layer, by its name there."""
        part = self.written.part
        shapes: dict[str, tuple[int, ...]] = {f"{part}.gate.weight": (self.number, self.hidden)}
        mlps = dict.fromkeys(self._names(), (self.written.products, self.inner))
        if self.shared:
            shapes[f"{part}.shared_expert_gate.weight"] = (1, self.hidden)
            mlps[f"{part}.shared_expert"] = (_SHARED, self.shared)
        for name, ((gate, up, down), inner) in mlps.items():
            shapes |= dict.fromkeys(
                (f"{name}.{gate}.weight", f"{name}.{up}.weight"), (inner, self.hidden)
            )
            shapes[f"{name}.{down}.weight"] = (self.hidden, inner)
        return shapes

    def mixture(self, tensor: Callable[[str], Tensor]) -> Mixture:
        """A layer's feed-forward part.

        Args:
            tensor: Reads one of the layer's, by its name there.
        """
        part = self.written.part

        def mlp(name: str, products: tuple[str, str, str]) -> Mlp:
            gate, up, down = products
            both = torch.cat([tensor(f"{name}.{each}.weight") for each in (gate, up)])
            return Mlp(Linear(both, None), Linear(tensor(f"{name}.{down}.weight"), None))

        scores = [tensor(f"{part}.gate.weight")]
        if self.shared:
            scores.append(tensor(f"{part}.shared_expert_gate.weight"))
        return Mixture(
            router=Linear(torch.cat(scores), None),
            favours=None,
            experts=[mlp(name, self.written.products) for name in self._names()],
            shared=mlp(f"{part}.shared_expert", _SHARED) if self.shared else None,
            chosen=self.chosen,
            sigmoid=False,
            summed=self.summed,
            scale=1.0,
        )

    def _names(self) -> list[str]:
        """What those to choose from are called."""
        return [f"{self.written.part}.experts.{index}" for index in range(self.number)]
