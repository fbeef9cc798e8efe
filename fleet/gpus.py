"""What GPUs can do, from public datasheets, and what they cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from common.errors import InvalidArgument

LEAST, MOST = 1e-6, 1e12
"""What figures of a plan lie between: what is made of them stays a number."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One type of GPU."""

    name: str
    """What to call it."""
    memory_gb: float
    """Memory, in 10^9 bytes."""
    bandwidth_gb_s: float
    """Memory bandwidth, in 10^9 bytes a second."""
    tflops: float
    """Dense 16-bit products (no sparsity), in 10^12 operations a second."""
    cost_per_hour: float
    """Price of one, in any currency."""


def _gpu(name: str, memory: float, bandwidth: float, tflops: float, cost: float) -> Gpu:
    return Gpu(
        name=name,
        memory_gb=memory,
        bandwidth_gb_s=bandwidth,
        tflops=tflops,
        cost_per_hour=cost,
    )


# Memory, bandwidth and dense FP16/BF16 rate: NVIDIA's datasheets of T4, L4, A10, A100 (SXM), L40S,
# H100 (SXM), H200 (SXM) and HGX B200; halves of the figures "with sparsity" where only those are
# given. CPU: one socket with eight channels of DDR5-4800 (8 x 38.4 GB/s) and 32 cores with
# AVX-512 at 2.5 GHz (64 single-precision operations a cycle).
# Prices are round figures near on-demand list prices of one large cloud in 2025, in dollars. They
# differ by a factor of three between providers and change every year: give your own.
_TYPES = (
    _gpu("T4", 16, 320, 65, 0.5),
    _gpu("L4", 24, 300, 121, 0.8),
    _gpu("A10", 24, 600, 125, 1.0),
    _gpu("A100-40", 40, 1555, 312, 2.7),
    _gpu("A100-80", 80, 2039, 312, 3.4),
    _gpu("L40S", 48, 864, 362, 1.9),
    _gpu("H100", 80, 3350, 989, 6.9),
    _gpu("H200", 141, 4800, 989, 7.9),
    _gpu("B200", 180, 8000, 2250, 14.0),
    _gpu("CPU", 256, 307, 5.1, 1.6),
)

GPUS: Mapping[str, Gpu] = {gpu.name: gpu for gpu in _TYPES}
"""The types known without being told."""


def catalogue(given: Iterable[str]) -> dict[str, Gpu]:
    """Returns the known types, with prices and types of the caller's own.

    Args:
        given: "T4=0.35", a price for a known type, or "mine=24/600/125/0.9", a type: memory in GB,
            bandwidth in GB/s, 16-bit TFLOPS, price for an hour.

    Raises:
        InvalidArgument: One has another form.
    """
    types = dict(GPUS)
    for text in given:
        name, _, rest = text.partition("=")
        figures = _figures(text, rest)
        if len(figures) == 1 and name in types:
            old = types[name]
            figures = [old.memory_gb, old.bandwidth_gb_s, old.tflops, *figures]
        if len(figures) != 4 or not name:
            raise _malformed(text)
        types[name] = _gpu(name, figures[0], figures[1], figures[2], figures[3])
    return types


def chosen(field: str, names: Iterable[str], types: Mapping[str, Gpu]) -> tuple[Gpu, ...]:
    """Returns types by name, each once.

    Raises:
        InvalidArgument: A name is not known; says which are.
    """
    wanted = tuple(dict.fromkeys(names))
    for name in wanted:
        if name not in types:
            raise InvalidArgument(field, f"must be of {', '.join(types)}, got {name!r}")
    return tuple(types[name] for name in wanted)


def _figures(text: str, rest: str) -> list[float]:
    try:
        figures = [float(part) for part in rest.split("/")]
    except ValueError:
        raise _malformed(text) from None
    if not all(LEAST <= figure <= MOST for figure in figures):
        raise _malformed(text)
    return figures


def _malformed(text: str) -> InvalidArgument:
    return InvalidArgument(
        "gpu",
        "must be NAME=PRICE for a known type or NAME=MEMORY/BANDWIDTH/TFLOPS/PRICE, all from "
        f"{LEAST:g} to {MOST:g}, got {text!r}",
    )
