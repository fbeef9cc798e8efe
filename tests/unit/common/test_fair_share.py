"""Shares of places: one tenant never takes the last of many, and several get equal parts."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from common.fair_share import over_share


def filled(places: int, *tenants: str) -> Counter[str]:
    """Has tenants ask in turns until nobody gets any more."""
    taken: Counter[str] = Counter()
    while True:
        before = taken.total()
        for tenant in tenants:
            if taken.total() < places and not over_share(taken[tenant], taken.total(), places):
                taken[tenant] += 1
        if taken.total() == before:
            return taken


@settings(max_examples=40)
@given(places=st.integers(1, 400))
def test_who_is_alone_gets_all_but_an_eighth_of_many(places: int) -> None:
    assert filled(places, "a")["a"] == places - places // 8


@settings(max_examples=40)
@given(places=st.integers(1, 400), tenants=st.integers(1, 12))
def test_several_get_equal_parts(places: int, tenants: int) -> None:
    taken = filled(places, *map(str, range(tenants)))
    parts = [taken[str(tenant)] for tenant in range(tenants)]
    assert max(parts) - min(parts) <= 1
    assert places - taken.total() <= places // 8


@settings(max_examples=40)
@given(places=st.integers(64, 400), asked=st.lists(st.sampled_from("ab"), max_size=600))
def test_a_newcomer_finds_a_place_whatever_two_others_did(places: int, asked: list[str]) -> None:
    taken: Counter[str] = Counter()  # of fewer places, one may get all that the other leaves
    for tenant in asked:
        if not over_share(taken[tenant], taken.total(), places):
            taken[tenant] += 1
    assert taken.total() <= places
    assert not over_share(0, taken.total(), places)


def test_what_is_given_back_evens_out() -> None:
    """Whose request ends is a matter of how many there are, and the flood asks first each time."""
    taken = filled(160, "flood")
    for _ in range(500):
        taken[max(taken, key=taken.__getitem__)] -= 1
        for tenant in ("flood", "other"):
            taken[tenant] += not over_share(taken[tenant], taken.total(), 160)
    assert abs(taken["flood"] - taken["other"]) <= 8, "what one free place is worth"
