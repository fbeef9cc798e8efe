"""Which ways to decode a run compares, and which of those asked for there are none of."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib.util import find_spec

from paceline import Client

from bench.contenders.contender import Contender, Loading, beside
from bench.settings import (
    CROWD_PEERS,
    DRAFTING_PEERS,
    HYBRIDS,
    LLAMA_PEERS,
    PEERS,
    PLAIN,
    ROUNDING_PEERS,
    VLLM_PEERS,
    Settings,
    at_once,
)
from bench.unseen import Unseen
from bench.variants import (
    Check,
    ConcurrentVariant,
    ContendersCrowd,
    ContenderVariant,
    GatewayVariant,
    Variant,
)
from launcher.commandline import WorkerOptions


@dataclass
class Plan:
    """What a run measures besides round trips."""

    single: list[Variant] = field(default_factory=list)
    """One prompt at a time."""

    concurrent: list[tuple[str, int, Variant]] = field(default_factory=list)
    """Several at once: method or peer, how many, and the variant; by how many."""

    left_out: list[str] = field(default_factory=list)
    """A line for each that was asked for and cannot be run."""


def plan(
    settings: Settings,
    workers: WorkerOptions,
    offered: Sequence[str],
    client: Client,
    stack: ExitStack,
    *,
    marks: tuple[int, ...] = (),
    check: Check = lambda: None,
) -> Plan:
    """Make the variants.

    Args:
        settings: What is asked for.
        workers: How the services run their models.
        offered: Methods the deployment lists.
        client: Of its gateway.
        stack: Ends the contenders' processes.
        marks: What makes prompts of several at once new, see `bench.unseen`; none leaves them.
        check: Of the deployment's drafter.
    """
    made, unseen = Plan(), Unseen(marks)
    for name in settings.peers:
        if problem := lacks(name, settings):
            made.left_out.append(f"{PEERS[name]}: {problem}")
            continue
        contender = stack.enter_context(Contender(name, loading(settings, workers)))
        made.single.append(ContenderVariant(PEERS[name], contender))
        if settings.concurrency and name in CROWD_PEERS:
            made.concurrent += crowds(name, settings, workers, stack, marks)
    methods, lacking = choose(settings.methods, offered)
    made.left_out += lacking
    heat = settings.temperature
    made.single += [
        GatewayVariant(method, client, method, temperature=heat, check=check) for method in methods
    ]
    if settings.concurrency:
        together, lacking = choose(settings.concurrent_methods or methods, offered)
        made.left_out += [line for line in lacking if line not in made.left_out]
        for method in together:
            for count in settings.concurrency:
                variant = ConcurrentVariant(
                    at_once(method, count),
                    client,
                    method,
                    count,
                    temperature=heat,
                    unseen=unseen,
                    check=check,
                )
                made.concurrent.append((method, count, variant))
    # Beside each other stand those that are compared: of one load, within seconds.
    made.concurrent.sort(key=lambda one: one[1])
    return made


def crowds(
    peer: str,
    settings: Settings,
    workers: WorkerOptions,
    stack: ExitStack,
    marks: tuple[int, ...],
) -> list[tuple[str, int, Variant]]:
    """Return a peer with several prompts at once."""
    most = max(settings.concurrency)
    wanted = replace(loading(settings, workers), at_once=most, marks=marks)
    contender = stack.enter_context(Contender(peer, wanted))
    label = PEERS[peer]
    return [
        (label, count, ContendersCrowd(at_once(label, count), contender, count))
        for count in settings.concurrency
    ]


def lacks(peer: str, settings: Settings) -> str:
    """Return why a peer cannot be run; nothing where it can.

    What a drafter chose for itself (auto) is nothing that anybody asked of peers: those that do not
    round have the draft model as it is stored.
    """
    if peer in DRAFTING_PEERS and settings.models.draft is None:
        return "there is no draft model"
    rounded = {settings.quantize}
    if peer in DRAFTING_PEERS and settings.draft_quantize != "auto":
        rounded.add(settings.draft_quantize)
    if peer not in ROUNDING_PEERS and rounded != {"none"}:
        return "its weights stay as they are stored: leave --quantize and --draft-quantize out"
    if peer in LLAMA_PEERS and "int4" in rounded:
        return "the bench has it round weights to int8 alone"
    if peer in LLAMA_PEERS and shutil.which(settings.llama_server) is None:
        return f"no program {settings.llama_server}; install llama.cpp, or name its server's path"
    if peer in LLAMA_PEERS and find_spec("gguf") is None:
        return "it reads GGUF files, for which the package gguf is wanted; install it"
    if peer in VLLM_PEERS and beside(settings.vllm) is None:
        return (
            f"no program {settings.vllm} with a Python beside it; install vLLM in an environment "
            "of its own, or name its program's path"
        )
    return ""


def choose(asked: Sequence[str], offered: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """Sort out what can be run.

    Args:
        asked: Methods, hybrids among them; none asks for all.
        offered: Single methods there are.

    Returns:
        Those that can be run, plain first since all are compared with it; and a line for each
        other.
    """
    if not asked:
        asked = (*offered, *(name for name in HYBRIDS if set(name.split("+")) <= set(offered)))
    lacking = {
        name: [part for part in name.split("+") if part not in offered]
        for name in dict.fromkeys((PLAIN, *asked))
    }
    lines = [
        f"{name}: this deployment does not offer {' and '.join(parts)}"
        for name, parts in lacking.items()
        if parts
    ]
    return tuple(name for name, parts in lacking.items() if not parts), lines


def loading(settings: Settings, workers: WorkerOptions) -> Loading:
    """Return what contenders load: the same weights, type and threads as the services.

    Those that cannot round have the weights as they are stored, also where the drafter chose by
    itself to round its own.

    Args:
        settings: What is asked for.
        workers: How the services run their models, with what the drafter chose.
    """
    draft = settings.models.draft
    return Loading(
        target=str(settings.models.target),
        draft=str(draft) if draft else None,
        dtype=settings.dtype,
        quantize=settings.quantize,
        draft_quantize=workers.draft_quantize,
        device=settings.device,
        threads=workers.most_threads,
        own_threads=workers.own_threads,
        temperature=settings.temperature,
        llama_server=settings.llama_server,
        vllm=settings.vllm,
    )
