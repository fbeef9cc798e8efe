"""The fingerprint of a loaded model: what decides the bits of its logits, as a hash."""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import version
from pathlib import Path

import torch

from common.errors import ModelError
from common.model import weight_files
from common.model.checkpoint import Config
from common.model.facts import Facts

_SAMPLES = 256
"""Places of a weight file that are looked at."""


def fingerprint_of(
    path: Path,
    config: Config,
    facts: Facts,
    device: torch.device,
    kernels: str,
    threads: int,
) -> str:
    """Hash of what decides the bits of the logits, and where a text ends.

    Weight files are hashed by their headers and by samples spread over their whole length, so
    that a fine-tuned copy differs and a large model does not take minutes.
    """
    parts = {
        "config": config,
        "ends": sorted(facts.eos_token_ids),
        "dtype": str(facts.dtype),
        "device": _gpu(device) if device.type == "cuda" else _processor(),
        "threads": threads,
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "kernels": kernels,
    }
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode())
    for file in _weights(path, config):
        size = file.stat().st_size
        with file.open("rb") as stream:
            digest.update(size.to_bytes(8))
            digest.update(stream.read(1 << 20))
            for sample in range(_SAMPLES):
                stream.seek(size * sample // _SAMPLES)
                digest.update(stream.read(4096))
    return digest.hexdigest()


def _weights(path: Path, config: Config) -> list[Path]:
    """The files that weights are read from; all that may be, where the configuration names them.

    Raises:
        ModelError: The index names one outside the directory.
    """
    names = weight_files.names(path)
    for name in names:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ModelError(f"{path}: {name!r}, which its index names, is outside of it")
    if "transformers_weights" in config:
        return sorted(path.rglob("*.safetensors"))
    return [path / name for name in names]


def _gpu(device: torch.device) -> list[object]:
    """What torch's products hang on: GPUs of one name may differ in their units, or share them."""
    properties = torch.cuda.get_device_properties(device)
    tf32 = torch.backends.cuda.matmul.allow_tf32
    return [properties.name, properties.multi_processor_count, tf32]


def _processor() -> str:
    return f"cpu {torch.backends.cpu.get_cpu_capability()}"
