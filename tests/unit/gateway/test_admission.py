"""Who may run: places are bounded, and no tenant takes those of all others."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import ResourceExhausted
from gateway.admission import Admission
from gateway.auth.caller import ANYONE, Caller, Limits


def caller(tenant: str, **limits: float) -> Caller:
    return Caller(tenant=tenant, limits=Limits(**limits))  # type: ignore[arg-type]


def flooded(stack: ExitStack, admission: Admission, who: Caller) -> int:
    """Takes places until one is refused; returns how many those were."""
    for taken in range(10_000):
        try:
            stack.enter_context(admission.slot(who))
        except ResourceExhausted:
            return taken
    raise AssertionError("no limit")


def test_one_tenant_alone_leaves_an_eighth_and_another_gets_it() -> None:
    admission = Admission(64)
    with ExitStack() as stack:
        assert flooded(stack, admission, caller("flood")) == 56
        with pytest.raises(ResourceExhausted, match="this tenant are running"):
            stack.enter_context(admission.slot(caller("flood")))
        assert flooded(stack, admission, caller("other")) == 7
        stack.enter_context(admission.slot(caller("third")))
        with pytest.raises(ResourceExhausted, match="this gateway's limit"):
            stack.enter_context(admission.slot(caller("fourth")))
    assert admission.running == 0


def test_a_place_is_free_again_after_an_error() -> None:
    admission = Admission(1)
    with pytest.raises(KeyError), admission.slot():
        raise KeyError
    with admission.slot(), pytest.raises(ResourceExhausted, match="this gateway's limit"):
        admission.slot().__enter__()


def test_where_nobody_is_told_apart_all_places_are_everybodys() -> None:
    with ExitStack() as stack:
        assert flooded(stack, Admission(64), ANYONE) == 64


def test_a_tenants_own_limit_comes_first() -> None:
    with ExitStack() as stack:
        assert flooded(stack, Admission(64), caller("small", max_concurrent=3)) == 3


@settings(max_examples=40)
@given(places=st.integers(1, 130), seed=st.integers(0, 2**32))
def test_places_add_up_and_a_newcomer_finds_one(places: int, seed: int) -> None:
    draw, admission = random.Random(seed), Admission(places)
    held: dict[str, list[ExitStack]] = {"a": [], "b": []}
    for _ in range(300):
        tenant = draw.choice("ab")
        if held[tenant] and draw.random() < 0.3:
            held[tenant].pop().close()
            continue
        stack = ExitStack()
        try:
            stack.enter_context(admission.slot(caller(tenant)))
        except ResourceExhausted:
            assert admission.running >= places - 1 - places // 8
        else:
            held[tenant].append(stack)
        counted = Counter({name: len(stacks) for name, stacks in held.items()})
        assert admission.running == counted.total() <= places
        if places >= 64:  # of fewer, one tenant may get all that another leaves
            with admission.slot(caller("newcomer")):
                pass
    for stacks in held.values():
        for stack in stacks:
            stack.close()
    assert admission.running == 0
    assert not admission._accounts
