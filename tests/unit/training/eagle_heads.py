"""An EAGLE head over the tiny target, whose every matrix counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from training import eagle_start
from training.eagle_net import EagleNet
from training.eagle_start import EagleShape


def made(target: Any, vocab: int = 100, taps: tuple[int, ...] = (0, 1)) -> EagleNet:
    """A head that guesses among tokens spread over the vocabulary; all where 0."""
    size = target.config.vocab_size
    ids = torch.arange(vocab) * (size // vocab) + 1 if vocab else None
    shape = EagleShape(inner=24, taps=taps)
    eagle_start.check(target, Path("target"), shape)
    net = EagleNet(eagle_start.start(target, shape, ids, seed=1))
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in sorted(net.named_parameters()):
            wide = 0.1 if name.endswith("norm") else 0.2
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=wide)
    return net


def ids_of(length: int, *, seed: int, rows: int = 1, vocab: int = 300) -> torch.Tensor:
    """Texts of random tokens. # [rows, length]"""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab, (rows, length), generator=generator)
