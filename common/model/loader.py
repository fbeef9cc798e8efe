"""Loads a causal language model from `transformers` and makes it fit the engine.

What comes out computes every row of a batch independently of the others (`linear`), attends
through our paged cache (`attention`), and looks rotary embeddings up in a table. A model that
cannot be run that way is refused here, by name and reason.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed
import transformers
from huggingface_hub import snapshot_download
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.utils import logging as hf_logging

from common.errors import ModelError
from common.model import attention
from common.model.kernels import Forward, Kernels, Quantize, WholePass, prepare
from common.model.linear import tiled_experts

Dtype = Literal["auto", "bfloat16", "float32", "float16"]

_STATIC_ROPE = {"default", "linear", "llama3", "yarn", "proportional"}
_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
"""What is fetched of a repository."""

_SAMPLES = 256
"""Places of a weight file that its fingerprint looks at."""

_LAYER_TYPES = {"full_attention", "sliding_attention"}
"""Layer kinds whose mask is a matter of position alone."""


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model ready for `Runner`."""

    forward: Forward | WholePass
    """Maps ids `[N]`, positions `[N]` and wanted rows `[M]`, or segments with all of it, to logits
    `[M, V]` and the states the output layer read, `[M, hidden]`."""
    parameters: int
    """How many numbers it has."""
    output_weight: Tensor
    """The output layer's matrix, `[V, hidden]`."""
    context: attention.AttentionContext
    """Shared by its attention layers."""
    path: Path
    """The directory the model was loaded from."""
    name: str
    """Directory's or repository's last part."""
    vocab_size: int
    """Rows of the output layer."""
    max_len: int
    """Positions the model was made for."""
    eos_token_ids: tuple[int, ...]
    """Ids that end a text."""
    device: torch.device
    """Where it runs."""
    dtype: torch.dtype
    """Of its weights."""
    kernels: str
    """What its passes run through: native, fused, packed, tiled, …"""
    fingerprint: str
    """Hash of what decides the bits of its logits, but for row padding."""


def load(
    path: str,
    *,
    dtype: Dtype = "auto",
    device: str = "auto",
    quantize: Quantize = "none",
    kernels: Kernels = "auto",
    most_threads: int = 0,
) -> LoadedModel:
    """Loads a model.

    Args:
        path: A directory in Hugging Face form, or a repository of the hub.
        dtype: Of the weights; "auto" takes what the files say.
        device: "cpu", "cuda", "cuda:1", …; "auto" takes CUDA where it is there.
        quantize: What the weights of its linear layers are rounded to.
        kernels: Whether passes may run through ours, or through torch's alone.
        most_threads: CPU threads of a pass of many rows, and of every pass where that is chosen,
            where that can differ from torch's number; 0 for no more.

    Raises:
        ModelError: Missing, corrupt or unsupported; says which file or what.
    """
    directory = _resolve(path)
    where = torch.device(device_name(device))
    config = _config(directory)
    _check_architecture(config)
    model = _weights(directory, config, dtype, where)
    context = attention.AttentionContext()
    layers = attention.attach(model, context)
    text = config.get_text_config()
    if layers != text.num_hidden_layers:
        raise ModelError(
            f"{_kind(config)} cannot be served: {text.num_hidden_layers} layers, but {layers} of "
            "them are attention; recurrent and convolutional state cannot be rolled back"
        )
    weight_type = next(model.parameters()).dtype
    parameters = sum(weight.numel() for weight in model.parameters())
    max_len = _max_len(text)
    model.eval().requires_grad_(False)
    output_layer: Any = model.get_output_embeddings()  # type: ignore[operator]
    weight = output_layer.weight.data
    forward, name = prepare(
        model,
        context,
        device=where,
        max_len=max_len,
        quantize=quantize,
        kernels=kernels,
        most_threads=most_threads,
    )
    return LoadedModel(
        forward=forward,
        parameters=parameters,
        output_weight=weight,
        context=context,
        path=directory,
        name=Path(path).name,
        vocab_size=text.vocab_size,
        max_len=max_len,
        eos_token_ids=_eos(model, text),
        device=where,
        dtype=weight_type,
        kernels=name,
        fingerprint=_fingerprint(directory, config, weight_type, where, name),
    )


def device_name(name: str) -> str:
    """What a device is called by torch; "auto" is resolved.

    Raises:
        ModelError: It is not there; says what is.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ModelError(f"device {name}: must be auto, cpu, cuda, or cuda:0, cuda:1, …")
    count = torch.cuda.device_count()
    if name != "cpu" and int(name.partition(":")[2] or 0) >= count:
        raise ModelError(f"device {name}: {count or 'no'} CUDA devices here; use cpu or auto")
    return name


def _resolve(path: str) -> Path:
    """The directory of a model; fetches a repository of the hub into its cache."""
    local = Path(path)
    if local.is_dir():
        return local
    if local.is_absolute() or path.startswith(".") or path.count("/") != 1:
        raise ModelError(f"{path}: no such directory")
    try:
        return Path(snapshot_download(path, allow_patterns=_FILES))
    except Exception as error:  # network, authorisation, name: all mean the same to the operator
        problem = f"neither a directory nor to be had from the hub: {_first_line(error)}"
        raise ModelError(f"{path}: {problem}") from error


def _config(path: Path) -> Any:
    if not (path / "config.json").is_file():
        raise ModelError(
            f"{path}: no config.json there; a model directory in Hugging Face form holds one"
        )
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{path}: config.json cannot be used: {_first_line(error)}") from error


def _check_architecture(config: Any) -> None:
    """Refuses what the engine cannot compute exactly."""
    kind = _kind(config)
    cls = AutoModelForCausalLM._model_mapping.get(type(config), None)
    if cls is None or config.is_encoder_decoder:
        raise ModelError(f"{kind} cannot be served: not a causal language model")
    if isinstance(cls, tuple):
        cls = cls[0]
    if getattr(cls, "_is_stateful", False):
        raise ModelError(
            f"{kind} cannot be served: it keeps recurrent state, which cannot be rolled back"
        )
    if "ALL_ATTENTION_FUNCTIONS" not in inspect.getsource(inspect.getmodule(cls) or cls):
        raise ModelError(
            f"{kind} cannot be served: its attention does not go through AttentionInterface"
        )
    text = config.get_text_config()
    odd = set(getattr(text, "layer_types", None) or ()) - _LAYER_TYPES
    if odd:
        raise ModelError(f"{kind} cannot be served: it has layers of type {', '.join(sorted(odd))}")


def _weights(path: Path, config: Any, dtype: Dtype, device: torch.device) -> nn.Module:
    hf_logging.disable_progress_bar()  # a service's stderr is one JSON object a line
    attention.register()
    ALL_EXPERTS_FUNCTIONS.register(attention.NAME, tiled_experts)
    parallel = torch.distributed.is_available() and torch.distributed.is_initialized()
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            dtype=dtype if dtype == "auto" else getattr(torch, dtype),
            attn_implementation=attention.NAME,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            **({"tp_plan": "auto"} if parallel else {}),
        )
    except Exception as error:  # transformers raises many kinds; all mean the same to the operator
        raise ModelError(f"{path}: weights cannot be loaded: {_first_line(error)}") from error
    for problem in ("missing_keys", "mismatched_keys"):
        if report[problem]:
            key = sorted(map(str, report[problem]))[0]
            raise ModelError(f"{path}: {problem.replace('_', ' ')}: {key}")
    for module in model.modules():
        if hasattr(module, "is_transposed") and hasattr(module, "config"):  # experts
            module.config._experts_implementation = attention.NAME
    loaded: nn.Module = model if parallel else model.to(device)
    return loaded


def _max_len(text: Any) -> int:
    limit = int(text.max_position_embeddings)
    rope = getattr(text, "rope_parameters", None) or {}
    nested = [rope] if "rope_type" in rope else [r for r in rope.values() if isinstance(r, dict)]
    for one in nested:
        if one.get("rope_type", "default") not in _STATIC_ROPE:
            # These change their frequencies with the longest sequence of a batch; up to the
            # original length they do not.
            original = one.get("original_max_position_embeddings") or limit
            limit = min(limit, int(original))
    return limit


def _eos(model: Any, text: Any) -> tuple[int, ...]:
    for source in (getattr(model, "generation_config", None), text):
        eos = getattr(source, "eos_token_id", None)
        if eos is not None:
            return tuple(eos) if isinstance(eos, (list, tuple)) else (int(eos),)
    return ()


def _fingerprint(
    path: Path, config: Any, dtype: torch.dtype, device: torch.device, kernels: str
) -> str:
    """Hash of what decides the bits of the logits.

    Weight files are hashed by their headers and by samples spread over their whole length, so
    that a fine-tuned copy differs and a large model does not take minutes.
    """
    cuda = device.type == "cuda"
    facts = {
        "config": config.to_diff_dict(),
        "dtype": str(dtype),
        "device": torch.cuda.get_device_name(device) if cuda else _processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "kernels": kernels,
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
    for file in sorted(path.glob("*.safetensors")):
        size = file.stat().st_size
        with file.open("rb") as stream:
            digest.update(size.to_bytes(8))
            digest.update(stream.read(1 << 20))
            for sample in range(_SAMPLES):
                stream.seek(size * sample // _SAMPLES)
                digest.update(stream.read(4096))
    return digest.hexdigest()


def _processor() -> str:
    return f"cpu {torch.backends.cpu.get_cpu_capability()}"


def _kind(config: Any) -> str:
    names = getattr(config, "architectures", None) or [type(config).__name__]
    return f"{names[0]} ({config.model_type})"


def _first_line(error: BaseException) -> str:
    return next(
        (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
    )
