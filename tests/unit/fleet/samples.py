"""A fleet in good health, to be made ill."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fleet.snapshot import Identity, Load, Measured, Pair, Pool, Snapshot, State, Tier, Worker


def identity(**changes: Any) -> Identity:
    base = Identity(
        incarnation=1,
        model="big",
        tokenizer="t",
        numerics="n",
        vocab_size=4096,
        methods=("plain", "draft"),
        version="0.1.0",
        dtype="bfloat16",
        device="cuda:0",
        accelerator="NVIDIA H100 80GB HBM3",
    )
    return replace(base, **changes)


def load(**changes: Any) -> Load:
    base = Load(
        running=3,
        waiting=0,
        kv_blocks_total=1000,
        kv_blocks_free=600,
        step_ms=30.0,
        plain_step_ms=28.0,
        steps=100,
        tokens=1000,
        stale_drafts=0,
        stale_epochs=0,
        queue_wait_ms=0.0,
        batch_occupancy=0.5,
        draft_wait_ms=1.0,
    )
    return replace(base, **changes)


def worker(address: str = "v1", **changes: Any) -> Worker:
    tier = Tier.VERIFIER if address.startswith("v") else Tier.DRAFTER
    of_tier = {} if tier is Tier.VERIFIER else {"model": "small", "methods": ()}
    base = Worker(
        address=address,
        tier=tier,
        pool="h100" if tier is Tier.VERIFIER else "t4",
        state=State.READY,
        in_flight=0,
        identity=identity(**of_tier),
        load=load(),
    )
    return replace(base, **changes)


def measured(**changes: Any) -> Measured:
    base = Measured(
        alive=True,
        sessions=2,
        rounds=100,
        drafted_tokens=400,
        accepted_tokens=300,
        acceptance=0.75,
        round_trip_ms=2.0,
        draft_ms=3.0,
        gain=1.8,
    )
    return replace(base, **changes)


def pair(verifier: str = "v1", drafter: str = "d1", **changes: Any) -> Pair:
    base = Pair(verifier=verifier, drafter=drafter, misfit="", offered=True, measured=measured())
    return replace(base, **changes)


def snapshot(**changes: Any) -> Snapshot:
    base = Snapshot(
        workers=(worker("v1"), worker("v2"), worker("d1")),
        pairs=(pair("v1"), pair("v2")),
        pools=(
            Pool(tier=Tier.VERIFIER, name="h100", ready=2, desired=2),
            Pool(tier=Tier.DRAFTER, name="t4", ready=1, desired=1),
        ),
        at_s=10.0,
    )
    return replace(base, **changes)
