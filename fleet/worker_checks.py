"""What is wrong with workers, each by itself or beside others of its tier."""

from __future__ import annotations

from collections.abc import Iterator

from common.tokenizer import WRITING
from fleet.finding import (
    Evidence,
    Finding,
    error,
    grouped,
    listed,
    model_of,
    ready,
    scale,
    shown,
    warning,
)
from fleet.snapshot import State, Tier, Worker

MOST_KV_USE = 0.9
"""Above it new sequences wait for others to end, and cached prefixes go."""


def no_verifiers(evidence: Evidence) -> Iterator[Finding]:
    """Models that nobody can answer for."""
    verifiers = evidence.now.of(Tier.VERIFIER)
    if not verifiers:
        yield error(
            "no verifier is listed",
            "the gateway's list, name or Kubernetes Service has no verifier in it",
            "start one, or mend the gateway's setting `verifiers`",
        )
    served = {worker.identity.model for worker in verifiers if worker.identity}
    for model in sorted(served - {model_of(worker) for worker in ready(evidence, Tier.VERIFIER)}):
        yield error(
            f"no verifier of {model} is ready",
            "requests for it wait a while and then end with UNAVAILABLE",
            "start a verifier of it, or see below why those that are listed cannot be used; one "
            "that drains was told to, or is no longer in the gateway's list, name or Kubernetes "
            "Service",
        )


def unusable_workers(evidence: Evidence) -> Iterator[Finding]:
    """Workers that are listed but get nothing."""
    for worker in evidence.now.workers:
        name = f"{worker.tier} {worker.address}"
        if worker.state is State.LOST and worker.identity is None:
            yield error(
                f"{name} was never reached",
                "it is still loading its model, or address, port, network policy or certificates "
                "do not fit",
                "look at its log; the gateway's log names the reason (`not reachable yet`)",
            )
        elif worker.state is State.LOST:
            yield error(
                f"{name} is lost",
                "it was drained, its process failed, or the network between it and the gateway "
                "is down",
                "look at its log and restart it, or take it off the gateway's list",
            )
        elif worker.state is State.BROKEN:
            yield error(
                f"{name} is broken",
                "it answers, but failed several requests in a row, so it rests for a while",
                "look at its log for the error; drain and replace it if that comes back",
            )


def queues(evidence: Evidence) -> Iterator[Finding]:
    """Sequences that wait and do not become fewer."""
    for worker in evidence.now.of(Tier.VERIFIER):  # a drafter's are branches in the making
        old = evidence.before.worker(worker.address) if evidence.before else None
        if worker.load is None or old is None or old.load is None:
            continue
        if 0 < old.load.waiting <= worker.load.waiting:
            yield warning(
                f"{worker.tier} {worker.address}: {worker.load.waiting} sequences wait "
                f"({old.load.waiting} a moment ago), for {worker.load.queue_wait_ms:.0f} ms",
                "more comes in than it can finish",
                f"{scale(worker.tier, worker.pool)} up, or lower the gateway's max_concurrent",
            )


def caches(evidence: Evidence) -> Iterator[Finding]:
    """Key/value caches that are nearly full."""
    for worker in evidence.now.workers:
        if worker.load is not None and worker.load.kv_use >= MOST_KV_USE:
            yield warning(
                f"{worker.tier} {worker.address}: {worker.load.kv_use:.0%} of its key/value cache "
                "is held",
                "new sequences wait for blocks, running ones may be put back",
                "give it more memory (`engine.kv_bytes`), shorter requests, or more replicas",
            )


def pool_sizes(evidence: Evidence) -> Iterator[Finding]:
    """Pools that are smaller than the load calls for."""
    for pool in evidence.now.pools:
        if pool.ready < pool.desired:
            yield warning(
                f"pool {pool.tier}/{pool.name or '-'} has {pool.ready} ready, the load calls for "
                f"{pool.desired}",
                "requests wait, or verifiers wait for drafts",
                f"{scale(pool.tier, pool.name)} to {pool.desired}, or let an autoscaler follow "
                "paceline_desired_replicas",
            )


def vocabularies(evidence: Evidence) -> Iterator[Finding]:
    """Verifiers of one name to which the same ids mean something else."""
    for model, verifiers in sorted(grouped(ready(evidence, Tier.VERIFIER), model_of).items()):
        groups = grouped(verifiers, _vocabulary)
        if len(groups) > 1:
            yield warning(
                f"verifiers of {model} differ in tokenizer or vocabulary: {shown(groups)}",
                "token ids mean other text to each kind, so only one of them is given requests: "
                "one whose tokenizer the gateway has, then the one with the most verifiers",
                "run all of them from one model directory, or give the others a name of their own "
                "(the verifiers' setting `name`)",
            )


def numerics(evidence: Evidence) -> Iterator[Finding]:
    """Verifiers that cannot take over from each other."""
    for model, verifiers in sorted(grouped(ready(evidence, Tier.VERIFIER), model_of).items()):
        groups = grouped(verifiers, lambda w: w.identity.numerics if w.identity else "")
        alone = [group[0].address for group in groups.values() if len(group) == 1]
        if len(groups) > 1 and alone:
            short = {key[:12] or "unknown": value for key, value in groups.items()}
            yield warning(
                f"verifiers of {model} compute with different numerics: {shown(short)}",
                f"a generation moves only to the same bits: nobody can go on for {listed(alone)}",
                "run each of weights, ends of a text (generation_config.json), dtype, GPU type and "
                "version on two verifiers at least",
            )


def versions(evidence: Evidence) -> Iterator[Finding]:
    """Software of different versions."""
    groups = grouped(evidence.now.workers, lambda w: w.identity.version if w.identity else "")
    if len(groups) > 1:
        yield warning(
            f"workers run different versions: {shown(groups)}",
            "only fields that both ends know are used, and numerics may differ between versions, "
            "so that generations cannot move from one verifier to another",
            "finish the rollout: bring all pools to one image",
        )


def mixed_pools(evidence: Evidence) -> Iterator[Finding]:
    """Pools whose workers are not alike."""
    known = [worker for worker in evidence.now.workers if worker.identity]
    for pool, workers in sorted(grouped(known, lambda w: f"{w.tier}/{w.pool}").items()):
        models = grouped(workers, model_of)
        if len(models) > 1:
            yield warning(
                f"pool {pool} serves different models: {shown(models)}",
                "its workers are scaled together, whichever of the models is busy",
                "put each model into a pool of its own",
            )


def models_without_text(evidence: Evidence) -> Iterator[Finding]:
    """Models whose tokenizer the gateway lacks."""
    for model in evidence.models:
        if not model.has_tokenizer:
            yield warning(
                f"{model.name} takes token ids only",
                "the gateway has no tokenizer with its fingerprint, so text is refused",
                "name the model's directory in the gateway's setting `models`; where it has no "
                f"tokenizer.json, {WRITING}",
            )


def _vocabulary(worker: Worker) -> str:
    """What a worker's token ids mean; see `gateway.candidate.Description.vocabulary`."""
    known = worker.identity
    return f"{known.tokenizer[:12] or 'no tokenizer'}, {known.vocab_size} ids" if known else ""
