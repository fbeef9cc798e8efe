"""How each service is started: its command line."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from common import processors
from launcher.models import Models

LOOPBACK = "127.0.0.1"

Device = Literal["auto", "cpu", "cuda"]
"""Where models run."""

MOST_THREADS = 1024
"""Thousands take minutes to start, and still more end their process."""

MEASURED = ("gateway", "verifier", "drafter")
"""Services that serve metrics, in the order of their ports."""

_DRAFTER = 1 / 6
"""What the drafter has of both models' memory: they start on one GPU, at the same time."""


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """How verifier and drafter run their models."""

    dtype: str = "auto"
    """torch dtype of the weights: auto (the model's own), bfloat16, float16, float32."""

    quantize: str = "none"
    """What the target's weights are rounded to: none, int8, int4."""

    draft_quantize: str = "auto"
    """What the drafter's are: none, int8, int4, or auto for what turns out to be faster."""

    device: str = "auto"
    """Where the models run: auto, cpu, cuda."""

    gpu_memory_share: float = 0.9
    """Part of a GPU's memory that the models fill, weights and caches together, in (0, 1]."""

    threads: int = 0
    """CPU threads of each model; 0 shares the cores between the two."""

    grace_s: float = 5.0
    """Seconds that running requests get when a service stops."""

    @property
    def own_threads(self) -> int:
        """CPU threads of each model."""
        return self.threads or default_threads()

    @property
    def most_threads(self) -> int:
        """Those of both, as far as there are processors, which the target may take: for passes of
        many rows, under whose load the drafter rests, and for all that are much shorter with them.
        """
        return max(self.own_threads, min(2 * self.own_threads, processors.count()))


def verifier_command(
    models: Models, options: WorkerOptions, store_url: str | None = None
) -> list[str]:
    """Return the verifier's command line."""
    more = {
        "quantize": options.quantize,
        "most-threads": str(options.most_threads),
        "gpu-memory-share": _share(options, 1 - _DRAFTER if models.draft else 1),
    }
    if models.medusa:
        more["medusa"] = str(models.medusa)
    if models.eagle:
        more["eagle"] = str(models.eagle)
    if store_url:
        more["store-url"] = store_url
    return worker_command("verifier", models.target, options, more)


def drafter_command(model: Path, options: WorkerOptions) -> list[str]:
    """Return the drafter's command line."""
    more = {"quantize": options.draft_quantize, "gpu-memory-share": _share(options, _DRAFTER)}
    return worker_command("drafter", model, options, more)


def worker_command(
    module: str, model: Path, options: WorkerOptions, more: dict[str, str]
) -> list[str]:
    """Return the command line of a verifier or drafter on a port of its own choosing."""
    flags = {
        "model": str(model),
        "host": LOOPBACK,
        "port": "0",
        "dtype": options.dtype,
        "device": options.device,
        "threads": str(options.own_threads),
        "grace-s": str(options.grace_s),
        **more,
    }
    return service_command(module, flags)


def gateway_command(
    host: str,
    port: int,
    *,
    model: Path,
    verifier: str,
    drafter: str | None,
    store_url: str | None,
    grace_s: float,
) -> list[str]:
    """Return the command line of the gateway in front of one verifier and at most one drafter."""
    flags = {
        "host": host,
        "port": str(port),
        "models": str(model),
        "verifiers": verifier,
        "grace-s": str(grace_s),
    }
    if drafter:
        flags["drafters"] = drafter
    if store_url:
        flags["store-url"] = store_url
    return service_command("gateway", flags)


def _share(options: WorkerOptions, part: float) -> str:
    """Return a model's share of a GPU's memory: its part of what both have."""
    return f"{options.gpu_memory_share * part:g}"


def service_command(module: str, flags: dict[str, str]) -> list[str]:
    """Return a service's command; -P keeps folders of the working directory from shadowing it."""
    parts = [part for key, value in flags.items() for part in (f"--{key}", value)]
    return [sys.executable, "-P", "-m", module, *parts]


def metrics_ports(first: int | None) -> dict[str, int]:
    """Return where each service serves its metrics, from a port on; nowhere where there is none."""
    return {} if first is None else {name: first + at for at, name in enumerate(MEASURED)}


def metrics_environment(first: int | None) -> dict[str, str]:
    """Return the environment in which they do."""
    ports = metrics_ports(first).items()
    return {f"PACELINE_{name.upper()}_METRICS_PORT": str(port) for name, port in ports}


def default_threads() -> int:
    """Return the threads for each of the two models, so that together they fill the cores."""
    return max(1, processors.count() // 2)
