"""How near a model's steps come to what memory and arithmetic allow on this machine.

    python -m bench.roofline [--device cuda] [MODEL_DIRECTORY ...]

A step reads every weight of the model's products once, however many rows it has, and the keys and
values of all positions before; it multiplies and adds once for each weight and row. Of experts it
reads those that a row takes: so many as if rows chose independently of each other. Neither can take
less time than the machine needs for so many bytes or operations. Bytes are those of the model's
files: where the engine keeps weights in fewer, as it does with AMX, where rows choose alike, or
where a cache holds the experts of steps that are timed again and again, more than all of what the
machine allows for those can be reached.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open

from bench import machine, step_times
from bench.arguments import ending_well
from bench.machine import Limits
from bench.tables import Cells
from common.errors import ModelError
from launcher import models
from launcher.commandline import default_threads

MEMORY_BYTES = 512 << 20
"""More than any cache holds."""

OUTPUTS = ("lm_head.weight", "embed_out.weight")
"""How names of output layers end."""
POSITIONS = ("wpe.weight", "embed_positions.weight")
"""Those of embeddings of positions."""
PER_LAYER = "embed_tokens_per_layer.weight"
"""That of embeddings that layers read of their own."""

EXPERTS = ".experts."
"""What names of weights of experts have in them."""
COUNTS = "num_experts", "num_local_experts", "n_routed_experts"
"""What configurations call how many experts there are."""

DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What a step of a model needs."""

    dtype: str
    """Type of the weights, as torch calls it."""

    weight_bytes: int
    """Weights read by each step."""

    expert_bytes: int = 0
    """Weights of all experts, of which a step reads those that a row takes."""

    taken: float = 0.0
    """Share of the experts that a row takes."""

    kv_bytes_per_position: int
    """Keys and values read for each earlier position, and written for each row."""

    operations_per_row: int
    """Multiplications and additions of the products, for each row."""

    def moved_bytes(self, rows: int) -> int:
        """Return what a step of so many rows, with nothing before them, reads and writes."""
        experts = round(self.expert_bytes * (1 - (1 - self.taken) ** rows))
        return self.weight_bytes + experts + rows * self.kv_bytes_per_position

    @property
    def kept_bytes(self) -> int:
        """All weights."""
        return self.weight_bytes + self.expert_bytes

    def floor_s(self, rows: int, limits: Limits) -> float:
        """Return the least time of a step."""
        moved_s = self.moved_bytes(rows) / limits.bytes_per_s
        return max(moved_s, rows * self.operations_per_row / limits.operations_per_s)


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """One model on this machine."""

    model: str
    """Its directory."""

    threads: int
    """CPU threads of its steps."""

    demand: Demand
    memory_one_thread: Limits
    """Reading more than any cache holds, with one thread; on a GPU the same as `limits`."""

    memory: Limits
    """The same with a thread on every core."""

    limits: Limits
    """Reading as many bytes as the model has, which may fit a cache, with the steps' threads: what
    a step is compared with."""

    steps: list[tuple[int, float]]
    """Seconds of a step by rows."""

    in_one_call: float | None
    """Seconds of a step of one row where they follow each other in one call, if they can."""

    def reached(self, rows: int, seconds: float) -> float:
        """Return the share of what the machine allows."""
        return self.demand.floor_s(rows, self.limits) / seconds

    def cells(self) -> Cells:
        """Return it as a table."""
        rows = [
            [
                str(count),
                f"{self.demand.moved_bytes(count) / 1e6:.1f}",
                f"{count * self.demand.operations_per_row / 1e9:.3f}",
                f"{1e3 * self.demand.floor_s(count, self.limits):.2f}",
                f"{1e3 * seconds:.2f}",
                f"{100 * self.reached(count, seconds):.0f} %",
            ]
            for count, seconds in self.steps
        ]
        if self.in_one_call:  # beside the first, which differs in nothing else
            share = f"{100 * self.reached(1, self.in_one_call):.0f} %"
            line = ["1, in one call", *rows[0][1:4], f"{1e3 * self.in_one_call:.2f}", share]
            rows.insert(1, line)
        return Cells(
            f"{Path(self.model).name}, {self.demand.dtype}, "
            f"{self.limits.gpu or f'threads: {self.threads}'}",
            ("rows", "MB", "Gop", "least ms", "ms", "reached"),
            rows,
        )

    def about(self) -> str:
        """Return what the machine can do."""
        if self.limits.gpu:
            return (
                f"Memory: {self.limits.bytes_per_s / 1e9:.0f} GB/s; products: "
                f"{self.limits.operations_per_s / 1e12:.0f} Top/s."
            )
        return (
            f"Memory: {self.memory_one_thread.bytes_per_s / 1e9:.1f} GB/s with one thread, "
            f"{self.memory.bytes_per_s / 1e9:.1f} GB/s with {os.cpu_count()}; reading "
            f"{self.demand.kept_bytes / 1e6:.1f} MB again and again with {self.threads}: "
            f"{self.limits.bytes_per_s / 1e9:.1f} GB/s; products: "
            f"{self.limits.operations_per_s / 1e9:.0f} Gop/s."
        )


def measure(model: str, dtype: str, threads: int, device: str = "cpu") -> Roofline:
    """Compare a model's steps with the machine.

    Args:
        model: Its directory.
        dtype: torch dtype of the weights, or auto.
        threads: CPU threads of its steps.
        device: Where they run: auto, cpu, cuda.
    """
    needs = demand(Path(model), dtype)
    limits = machine.measure(needs.kept_bytes, needs.dtype, threads, device)
    cores = os.cpu_count() or 1
    one, all_of_them = (
        limits if limits.gpu else machine.measure(MEMORY_BYTES, needs.dtype, count)
        for count in (1, cores)
    )
    steps, in_one_call = step_times.measure(model, dtype, threads, device)
    return Roofline(
        model=model,
        threads=threads,
        demand=needs,
        memory_one_thread=one,
        memory=all_of_them,
        limits=limits,
        steps=steps,
        in_one_call=in_one_call,
    )


def demand(model: Path, dtype: str) -> Demand:
    """Work out what a step needs from a model's files.

    Raises:
        ModelError: They do not say.
    """
    sizes, stored = weights(model)
    config = json.loads((model / "config.json").read_text("utf-8"))
    kind = stored if dtype == "auto" else dtype
    width = BYTES[kind]
    try:
        layers = first(config, "num_hidden_layers", "n_layer")
        heads = first(config, "num_attention_heads", "n_head")
        head = config.get("head_dim") or first(config, "hidden_size", "n_embd") // heads
        kv_heads = config.get("num_key_value_heads") or heads
        experts = sum(size for name, size in sizes.items() if EXPERTS in name)
        chosen = first(config, "num_experts_per_tok", "top_k_experts") if experts else 0
        taken = chosen / first(config, *COUNTS) if experts else 0.0
    except KeyError as error:
        raise ModelError(f"{model}: config.json has no {error}") from None
    # An embedding is a look-up of a row, unless it is the output layer, too.
    outputs = {name for name in sizes if name.endswith(OUTPUTS)}
    inputs = {name for name in sizes if "embed" in name or name.endswith("wte.weight")} - outputs
    tied = not outputs or (config.get("tie_word_embeddings", False) and inputs)
    aside = outputs if tied else inputs
    aside |= {name for name in sizes if name.endswith((*POSITIONS, PER_LAYER))}
    products = sum(size for name, size in sizes.items() if name not in aside) - experts
    return Demand(
        dtype=kind,
        weight_bytes=products * width,
        expert_bytes=experts * width,
        taken=taken,
        kv_bytes_per_position=kept(config, layers, kv_heads, head) * width,
        operations_per_row=2 * products + round(2 * experts * taken),
    )


def kept(config: dict[str, Any], layers: int, kv_heads: int, head: int) -> int:
    """Return how many numbers of a position the cache keeps, over all layers.

    Args:
        config: Of the model; layers may have heads of their own, or see another's keys.
        layers: How many it has.
        kv_heads: Key/value heads of the others.
        head: Numbers of a head of these.
    """
    named, kinds = config.get("per_layer_config") or {}, config.get("layer_types") or []
    of_all = {
        "head_dim": config.get("global_head_dim"),
        "num_key_value_heads": config.get("num_global_key_value_heads"),
    }
    numbers = 0
    for layer in range(layers - (config.get("num_kv_shared_layers") or 0)):
        sees_all = kinds[layer : layer + 1] == ["full_attention"]
        own = named.get(str(layer)) or (of_all if sees_all else {})
        numbers += (own.get("num_key_value_heads") or kv_heads) * (own.get("head_dim") or head)
    return 2 * numbers


def weights(model: Path) -> tuple[dict[str, int], str]:
    """Return the elements of each matrix in a model's files, and the type of most of them.

    Raises:
        ModelError: There are none, or such as are no matrices.
    """
    sizes: dict[str, int] = {}
    kinds: dict[str, int] = {}
    for path in sorted(model.glob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 (it is no dict)
                part = file.get_slice(name)
                shape = part.get_shape()
                # Norms and biases are next to nothing, and masks that old files have no weights.
                if len(shape) < 2 or name.endswith((".attn.bias", ".attention.bias")):
                    continue
                if len(shape) > 2 and EXPERTS not in name:
                    raise ModelError(f"{model}: {name}: neither a matrix nor those of experts")
                sizes[name] = elements = math.prod(shape)
                kinds[part.get_dtype()] = kinds.get(part.get_dtype(), 0) + elements
    most = max(kinds, key=kinds.__getitem__, default="")
    if most not in DTYPES:
        raise ModelError(f"{model}: no safetensors weights of type {', '.join(DTYPES)}")
    return sizes, DTYPES[most]


def first(config: dict[str, Any], *names: str) -> int:
    """Return the first entry there is.

    Raises:
        KeyError: There is none.
    """
    for name in names:
        if name in config:
            return int(config[name])
    raise KeyError(" or ".join(names))


def to_json(found: Sequence[Roofline]) -> str:
    """Return rooflines on one line."""
    return json.dumps([asdict(one) for one in found])


def main(directories: Sequence[str], device: str) -> None:
    """Print the rooflines of models, or of the bundled ones."""
    bundled = models.choose()
    for directory in directories or [str(m) for m in (bundled.target, bundled.draft) if m]:
        found = measure(directory, "auto", default_threads(), device)
        print(found.cells().markdown(), "", found.about(), sep="\n", end="\n\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.roofline")
    parser.add_argument("models", nargs="*", help="their directories (default: the bundled pair)")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    arguments = parser.parse_args()
    with ending_well():
        main(arguments.models, arguments.device)
