"""Loads a causal language model and makes it fit the engine.

What comes out computes every row of a batch independently of the others, attends through our paged
cache, and looks rotary embeddings up in a table. A decoder of Llama's shape is read from its files
(`checkpoint`), any other is loaded by `transformers` (`hf`); kernels of ours run both, where they
know the layers. A model that cannot be run so is refused, by name and reason.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
import torch.distributed

from common import accelerator, json_object
from common.errors import ModelError, first_line
from common.model import checkpoint, weight_files
from common.model.attention import AttentionContext
from common.model.checkpoint import Config
from common.model.facts import Facts
from common.model.fingerprint import fingerprint_of
from common.model.kernels import Forward, Kernels, Run, left_out, prepare
from common.model.llama import Llama
from common.model.quantized import Quantize
from common.model.room import OTHER_WEIGHTS, give_back, ran_out, room_for
from common.model.whole_pass import WholePass

if TYPE_CHECKING:
    from common.model.hf import HfModel

_log = logging.getLogger(__name__)

Dtype = Literal["auto", "bfloat16", "float32", "float16"]

_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
"""What is fetched of a repository."""

_DEPTHS = "num_hidden_layers", "n_layer"
"""Settings that say how many layers a model has."""


@dataclass(frozen=True, kw_only=True)
class LoadedModel(Facts):
    """A model ready for `Runner`."""

    forward: Forward | WholePass
    """Maps ids `[N]`, positions `[N]` and wanted rows `[M]`, or segments with all of it, to what
    `Output` has."""
    context: AttentionContext
    """Shared by its attention layers."""
    path: Path
    """The directory the model was loaded from."""
    name: str
    """Directory's or repository's last part."""
    device: torch.device
    """Where it runs."""
    kernels: str
    """What its passes run through: native, fused, packed, tiled, …"""
    fingerprint: str
    """Hash of what decides the bits of its logits, but for row padding, and the ends of texts."""
    unroundable: str
    """Why its weights cannot be rounded as it is run; nothing where that is not known."""

    @property
    def compiled(self) -> bool:
        """Whether the compiled decoder runs it, on a CPU."""
        return self.device.type == "cpu" and isinstance(self.forward, WholePass)


class _Found(NamedTuple):
    """A model, and what runs it."""

    facts: Facts
    run: Run
    unroundable: str = ""


class _Declined(NamedTuple):
    """A model that transformers has to load."""

    reason: str
    unread: bool
    """Whether that is because it could not be read: kernels of ours may run it then."""


_Prepare = Callable[[Llama], Run | None]
"""`prepare`, all but its model given."""


def load(
    path: str,
    *,
    dtype: Dtype = "auto",
    device: str = "auto",
    quantize: Quantize = "none",
    kernels: Kernels = "auto",
    most_threads: int = 0,
    keep_output: bool = True,
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
        keep_output: Whether somebody wants `output_weight`; passes may read a packed copy.

    Raises:
        ModelError: Missing, corrupt, unsupported or too large; says which file or what.
    """
    directory = _resolve(path)
    where = _device(device_name(device))
    _check_adapter(directory)
    config = _config(directory)
    _check_depth(directory, config, weight_files.check_access(directory))
    weights: torch.dtype | None = None if dtype == "auto" else getattr(torch, dtype)
    context = AttentionContext()
    ours: _Prepare = partial(
        prepare, context=context, quantize=quantize, kernels=kernels, most_threads=most_threads
    )
    with room_for(f"{directory} on {where}", OTHER_WEIGHTS):
        found = _plainly(directory, config, weights, where, kernels, ours)
        if isinstance(found, _Declined):
            from common.model.hf import HfModel  # takes seconds: only where it is needed

            said = {"path": str(directory), "reason": found.reason}
            _log.info("a model is loaded by transformers, which takes longer", extra=said)
            with _refusals(directory):
                whole = HfModel(directory, weights, where, parallel=_in_parallel())
                run = _by_ours(whole, where, kernels, ours) if found.unread else None
                reason = "" if run else whole.unroundable
                found = _Found(whole.facts, run or whole.modules(context, quantize), reason)
    give_back()
    facts, (forward, name), unroundable = found
    if not keep_output:
        facts = replace(facts, output_weight=None)
    by_torch = where.type == "cpu" and not isinstance(forward, WholePass)
    threads = torch.get_num_threads() if by_torch else 0  # no bit of another pass hangs on them
    return LoadedModel(
        **vars(facts),
        forward=forward,
        context=context,
        path=directory,
        name=Path(path).name,
        device=where,
        kernels=name,
        fingerprint=fingerprint_of(directory, config, facts, where, name, threads),
        unroundable=unroundable,
    )


def _plainly(
    directory: Path,
    config: Config,
    dtype: torch.dtype | None,
    device: torch.device,
    kernels: Kernels,
    ours: _Prepare,
) -> _Found | _Declined:
    """Reads a decoder of Llama's shape from its files, if kernels of ours can run it."""
    if _in_parallel():
        reason = "its weights are split between processes"
        left_out(device, reason)
        return _Declined(reason, unread=False)
    if kernels == "torch" and device.type == "cuda":
        return _Declined("kernels: torch", unread=False)
    try:
        llama = checkpoint.read(directory, config, dtype, device)
    except checkpoint.Unknown as unknown:
        return _Declined(str(unknown), unread=True)
    run = ours(llama)
    if run is None:
        return _Declined("no kernels of ours run it here", unread=False)
    return _Found(llama.facts, run)


def _by_ours(whole: HfModel, device: torch.device, kernels: Kernels, ours: _Prepare) -> Run | None:
    """Has kernels of ours run a model that `transformers` read, if they can."""
    lacking = whole.lacks
    if not lacking:
        return ours(whole.llama())
    if kernels == "auto":
        left_out(device, lacking)
    return None


@contextmanager
def _refusals(directory: Path) -> Iterator[None]:
    """Refuses a model at whose layers or configuration `transformers`, or our use of it, fails:
    that may raise anything."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (ModelError, AssertionError)) or ran_out(error):
            raise
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise ModelError(f"{directory}: cannot be served: {reason}") from error


def _in_parallel() -> bool:
    """Whether processes of `torch.distributed` share a model."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def device_name(name: str) -> str:
    """What a device is called by torch; "auto" is resolved, and logs why a GPU is left out.

    Raises:
        ModelError: It is not there, or does not compute; says what is, or why.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
        if name == "cpu" and torch.cuda.device_count():
            said = {"reason": accelerator.fault("cuda")}
            _log.warning("a GPU is left out: models run on the CPU", extra=said)
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ModelError(f"device {name}: must be auto, cpu, cuda, or cuda:0, cuda:1, …")
    count = torch.cuda.device_count()
    if name != "cpu" and int(name.partition(":")[2] or 0) >= count:
        raise ModelError(f"device {name}: {count or 'no'} CUDA devices here; use cpu or auto")
    problem = "" if name == "cpu" else accelerator.fault(name)
    if problem:
        raise ModelError(f"device {name}: {problem}")
    return name


def _device(name: str) -> torch.device:
    """A device as its tensors have it: "cuda" gets its number, unless another library gives it."""
    device = torch.device(name)
    if device.type == "cpu" or device.index is not None or _in_parallel():
        return device
    return torch.device("cuda", torch.cuda.current_device())


def _resolve(path: str) -> Path:
    """The directory of a model; fetches a repository of the hub into its cache."""
    local = Path(path)
    if local.is_dir():
        return local
    if local.is_file():
        raise ModelError(f"{path}: a file; a model is a directory in Hugging Face form")
    if local.is_absolute() or path.startswith(".") or path.count("/") != 1:
        raise ModelError(f"{path}: no such directory")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(path, allow_patterns=_FILES))
    except Exception as error:  # network, authorisation, name: all mean the same to the operator
        problem = f"neither a directory nor to be had from the hub: {first_line(error)}"
        raise ModelError(f"{path}: {problem}") from error


def _config(directory: Path) -> Config:
    file = directory / "config.json"
    if not file.is_file():
        raise ModelError(
            f"{directory}: no config.json there; a model directory in Hugging Face form holds one"
        )
    return json_object.read(file)


def _check_adapter(directory: Path) -> None:
    """Refuses an adapter: the model that it belongs to would be served without it."""
    if (directory / "adapter_config.json").is_file():
        raise ModelError(
            f"{directory}: an adapter (adapter_config.json) is not read: merge it into its model, "
            "as `merge_and_unload` of peft does, and serve what comes of that"
        )


def _check_depth(directory: Path, config: Config, tensors: int | None) -> None:
    """Refuses more layers than the files have tensors: to build them might never end.

    Args:
        directory: Of the files.
        config: What `config.json` holds.
        tensors: How many the files have; None where that is not known.
    """
    if tensors is None:
        return
    for part in (config, config.get("text_config")):
        for name in _DEPTHS:
            layers = part.get(name) if isinstance(part, dict) else None
            if isinstance(layers, int) and layers > tensors:
                raise ModelError(
                    f"{directory}: {layers} layers, but {tensors} tensors in its files"
                )
