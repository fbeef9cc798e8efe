"""Weights that files hold in fewer bits: which ways of it are known, and what widens them.

What no way explains is refused: layers would multiply by numbers that are only part of a weight.
What another library computes with, in layers of its own, is left to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.quantizers import AutoHfQuantizer

from common.errors import ModelError
from common.model.hf.layers import is_experts
from common.model.weight_files import Stored

_WIDENED: dict[str, dict[str, bool]] = {
    "compressed-tensors": {"dequantize": True, "run_compressed": False},  # its older name, too
    "fp8": {"dequantize": True},
    "mxfp4": {"dequantize": True},
    "mxfp8": {"dequantize": True},
}
"""By quant_method, the setting that has `transformers` widen weights as it loads them, wherever
they go: without it, some GPU in a host decides."""

_KNOWN = ", ".join(_WIDENED)

_SCALED = {"fp8", "mxfp8"}
"""Those of float8, whose scales are checked here."""

_SCALES = "{name}_scale_inv", "{layer}.scale", "{layer}.qscale_weight"
"""What they are called."""

_BLOCK = (128, 128)
"""Rows and columns that have one scale, where a configuration does not say."""

_FLOAT8 = {"F8_E4M3", "F8_E5M2"}
"""Weights among types in files; scales may be of another."""

_WEIGHTS = "weight", "_proj"
"""How names of what layers and experts multiply by end; masks are integers, too."""

_WIDE = {"F64", "F32", "F16", "BF16"}
"""Types in files of numbers that are what they say."""

_PLAIN = {torch.float32, torch.float16, torch.bfloat16}

_AS_THEY_ARE = "torch.nn.", "transformers.models.", "transformers.pytorch_utils"
"""Where classes are from that compute with weights as they are."""


def widens(said: Mapping[str, Any]) -> bool:
    """Whether weights are widened of which a configuration says this."""
    return said.get("quant_method") in _WIDENED


def widen(config: Any) -> dict[str, Any]:
    """Has a model's weights be widened when they are loaded.

    Args:
        config: Of the model; changed.

    Returns:
        What it says of how they are held in fewer bits; nothing where they are not.

    Raises:
        ValueError: `transformers` does not know it; names those that are widened.
    """
    for part in (config, config.get_text_config(decoder=True)):
        said = getattr(part, "quantization_config", None)
        if not said:
            continue
        method = said.get("quant_method")
        if not AutoHfQuantizer.supports_quant_method(said):
            raise ValueError(f"unknown quant_method {method!r}; widened here are {_KNOWN}")
        part.quantization_config = {**said, **_WIDENED.get(method, {})}
        return dict(said)
    return {}


def even(model: Any, dtype: torch.dtype) -> None:
    """Brings the weights of a widened model to one type, but for those that it keeps in float32.

    As loaded, what was not in fewer bits has the type of its file, and what was has that of its
    scales.

    Args:
        model: It.
        dtype: What it was asked for in.
    """
    kept = set(model._keep_in_fp32_modules_strict or ())
    if dtype == torch.float16:
        kept.update(model._keep_in_fp32_modules or ())
    for name, weight in model.named_parameters():
        if weight.is_floating_point():
            is_kept = any(part in name for part in kept)
            weight.data = weight.data.to(torch.float32 if is_kept else dtype)


def check_stored(directory: Path, tensors: Mapping[str, Stored], said: Mapping[str, Any]) -> None:
    """Refuses files of weights in fewer bits that nothing says how to widen.

    Args:
        directory: Of the files.
        tensors: What is in them.
        said: What the configuration says of it.

    Raises:
        ModelError: There are such; names one.
    """
    scaled, block = said.get("quant_method") in _SCALED, said.get("weight_block_size", _BLOCK)
    for name, tensor in sorted(tensors.items()):
        if not said and _is_narrow(name, tensor.dtype):
            raise ModelError(
                f"{directory}: {name} is of type {tensor.dtype}, and config.json has no "
                "quantization_config that says what it stands for"
            )
        if scaled and tensor.dtype in _FLOAT8:
            _check_scales(f"{directory}: {name}", tensor, _scales(name, tensors), block)


def _is_narrow(name: str, dtype: str) -> bool:
    """Whether a tensor in a file is of weights in fewer bits."""
    if dtype[0] in "IU":
        return name.endswith(_WEIGHTS)
    return dtype.startswith("F") and dtype not in _WIDE


def _scales(weight: str, tensors: Mapping[str, Stored]) -> Stored | None:
    """The scales of a weight; None where there are none."""
    layer = weight.removesuffix(".weight")
    names = (each.format(name=weight, layer=layer) for each in _SCALES)
    return next((tensors[name] for name in names if name in tensors), None)


def _check_scales(
    what: str, weight: Stored, scales: Stored | None, block: Sequence[int] | None
) -> None:
    """Refuses scales that are not there, or not of whole blocks: of how many rows and columns each
    is, `transformers` takes from how many there are."""
    if scales is None:
        raise ModelError(f"{what} has no scales beside it")
    if block is None or math.prod(scales.shape) == 1:
        return
    parts = zip(weight.shape[-2:], scales.shape[-2:], block, strict=False)
    odd = any(
        count != -(-size // step) or (count > 1 and size % step) for size, count, step in parts
    )
    if odd or len(scales.shape) < 2:
        raise ModelError(
            f"{what}: {list(weight.shape)} with scales {list(scales.shape)} is not of whole blocks "
            f"of {list(block)}, and cannot be widened here"
        )


def check_loaded(directory: Path, model: nn.Module) -> None:
    """Refuses weights that are not widened, and yet are computed with as they are.

    Args:
        directory: Of the model's files.
        model: It.

    Raises:
        ModelError: There are such; names one.
    """
    for path, module in model.named_modules():
        if not (type(module).__module__.startswith(_AS_THEY_ARE) or is_experts(module)):
            continue
        if isinstance(module, nn.Linear) and not hasattr(module, "weight"):
            raise ModelError(
                f"{directory}: {path} was loaded packed; widened here are files of quant_method "
                f"{_KNOWN}"
            )
        for name, weight in module.named_parameters(path, recurse=False):
            if type(weight.data) is Tensor and weight.dtype not in _PLAIN:
                raise ModelError(
                    f"{directory}: {name} was loaded as {weight.dtype}, which is not a weight "
                    f"itself; widened here are files of quant_method {_KNOWN}"
                )
