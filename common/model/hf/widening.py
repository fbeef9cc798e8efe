"""Weights that files hold in fewer bits: which ways of it are known, and what widens them.

What no way explains is refused: layers would multiply by numbers that are only part of a weight.
What another library computes with, in layers of its own, is left to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.quantizers import AutoHfQuantizer

from common.errors import ModelError
from common.model.hf.layers import is_experts
from common.model.weight_files import Stored

_WIDENED: dict[str, dict[str, bool]] = {
    "compressed-tensors": {"run_compressed": False},
    "fp8": {"dequantize": True},
    "mxfp4": {"dequantize": True},
    "mxfp8": {"dequantize": True},
}
"""By quant_method, the setting that has `transformers` widen weights as it loads them, wherever
they go: without it, some GPU in a host decides."""

_KNOWN = ", ".join(_WIDENED)

_WEIGHTS = "weight", "_proj"
"""How names of what layers and experts multiply by end; masks are integers, too."""

_WIDE = {"F64", "F32", "F16", "BF16"}
"""Types in files of numbers that are what they say."""

_PLAIN = {torch.float32, torch.float16, torch.bfloat16}

_AS_THEY_ARE = "torch.nn.", "transformers.models.", "transformers.pytorch_utils"
"""Where classes are from that compute with weights as they are."""


def widens(method: str | None) -> bool:
    """Whether weights are widened that are held in this way."""
    return method in _WIDENED


def widen(config: Any) -> str | None:
    """Has a model's weights be widened when they are loaded.

    Args:
        config: Of the model; changed.

    Returns:
        The way they are held in fewer bits, if they are: its quant_method.

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
        return str(method)
    return None


def even(model: Any, dtype: torch.dtype) -> None:
    """Brings the weights of a widened model to one type, but for those that it keeps in float32.

    What it does not hold in fewer bits is left in the type of its file, and what it does is given
    that of its scales.

    Args:
        model: It.
        dtype: What it was asked for in.
    """
    kept = set(model._keep_in_fp32_modules_strict or ())
    if dtype == torch.float16:
        kept.update(model._keep_in_fp32_modules or ())
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and not any(part in name for part in kept):
            weight.data = weight.data.to(dtype)


def check_stored(directory: Path, tensors: Mapping[str, Stored]) -> None:
    """Refuses files of weights in fewer bits where a configuration says nothing of it.

    Args:
        directory: Of the files.
        tensors: What is in them.

    Raises:
        ModelError: There are such; names one.
    """
    for name, tensor in sorted(tensors.items()):
        rounded = tensor.dtype.startswith("F") and tensor.dtype not in _WIDE
        if rounded or (tensor.dtype[0] in "IU" and name.endswith(_WEIGHTS)):
            raise ModelError(
                f"{directory}: {name} is of type {tensor.dtype}, and config.json has no "
                "quantization_config that says what it stands for"
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
