"""Which drafters a verifier is offered for its next session, and in which order."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from common.drafters import MOST_DRAFTERS
from gateway.candidate import Candidate
from gateway.gain import REPROBE_S
from gateway.placement import EXPLORE_EVERY, RETRY_EVERY, place
from tests.unit.gateway.candidates import drafter, measured, verifier, worker


def offered(one: Candidate, *drafters: Candidate, method: str = "auto", turn: int = 0):
    return place(method, [one], drafters, turn=lambda _: turn).drafters


def test_the_best_comes_first() -> None:
    one = verifier(pairs={"a": measured(1.4), "b": measured(2.2)})
    assert offered(one, drafter("a"), drafter("b")) == ("b", "a")


def test_one_that_reports_no_longer_comes_last() -> None:
    """In a trial, too, and where it is the best."""
    one = verifier(pairs={"a": measured(1.4), "b": measured(2.2)})
    drafters = drafter("a"), drafter("b", late=True), drafter("c", late=True)
    for turn in range(EXPLORE_EVERY):
        assert offered(one, *drafters, turn=turn)[0] == "a"
    assert offered(one, drafters[1]) == ("b",)


def test_no_drafter_helps() -> None:
    """Then none is offered, but to who asked for drafts by name: the best of them."""
    one = verifier(pairs={"a": measured(0.7, acceptance=0.1), "b": measured(0.8, acceptance=0.1)})
    drafters = drafter("a", step_ms=40), drafter("b", step_ms=40)
    assert offered(one, *drafters) == ()
    assert offered(one, *drafters, method="draft") == ("b",)
    assert offered(one, *drafters, method="plain") == ()


def test_every_so_often_an_unmeasured_drafter_comes_first() -> None:
    one = verifier(pairs={"a": measured(3.0)})
    slow = [drafter(f"slow{n}", step_ms=100) for n in range(3)]
    firsts = [offered(one, drafter("a"), *slow, turn=turn)[0] for turn in range(80)]
    counts = Counter(firsts)
    assert counts["a"] == 80 - 80 // EXPLORE_EVERY, "the share of trials is bounded"
    assert all(counts[each.address] for each in slow), "each has its turn"
    again = offered(one, drafter("a"), *slow, turn=EXPLORE_EVERY - 1)
    assert again[1] == "a", "where the trial fails, the best is next"


def test_what_was_left_out_is_tried_again_less_often() -> None:
    slow = measured(0.7, acceptance=0.1, quiet_s=REPROBE_S)
    one = verifier(pairs={"a": measured(3.0), "slow": slow, "other": slow})
    drafters = drafter("a"), *(drafter(name, step_ms=100) for name in ("slow", "other"))
    turns = 4 * EXPLORE_EVERY * RETRY_EVERY
    firsts = Counter(offered(one, *drafters, turn=turn)[0] for turn in range(turns))
    assert firsts == {"a": turns - 4, "slow": 2, "other": 2}


def test_all_measured_ones_are_used_by_rank_alone() -> None:
    one = verifier(pairs={"a": measured(2.0), "b": measured(3.0)})
    firsts = {offered(one, drafter("a"), drafter("b"), turn=turn)[0] for turn in range(40)}
    assert firsts == {"b"}


def test_a_burst_is_spread_before_any_report_shows_it() -> None:
    """Each session counts at its drafter as soon as it is placed."""
    loads = Counter({"a": 0, "b": 0})
    one = verifier(pairs={"a": measured(2.1), "b": measured(2.0)})
    for _ in range(10):
        drafters = [drafter(name, in_flight=count) for name, count in loads.items()]
        loads[offered(one, *drafters)[0]] += 1
    assert min(loads.values()) >= 4


WORKERS = st.lists(
    st.fixed_dictionaries(
        {
            "step_ms": st.floats(0, 100),
            "running": st.integers(0, 50),
            "in_flight": st.integers(0, 50),
            "lost": st.booleans(),
            "accepting": st.booleans(),
            "broken": st.booleans(),
            "busy": st.none() | st.floats(0, 1),
        }
    ),
    max_size=12,
)
PAIRS = st.dictionaries(
    st.integers(0, 11),
    st.builds(
        measured,
        st.floats(0, 8),
        st.integers(0, 10_000),
        acceptance=st.floats(0, 1),
        length=st.floats(0, 16),
        draft_ms=st.floats(0, 100),
        round_trip_ms=st.floats(0, 100),
        quiet_s=st.floats(0, 1e4),
        sessions=st.integers(0, 50),
    ),
)


@given(WORKERS, PAIRS, st.floats(0, 200), st.integers(0, 1000), st.sampled_from(["auto", "draft"]))
@example([{"step_ms": 1.0}], {}, 5e-324, 0, "auto")
@example([{"step_ms": 5e-324}], {}, 1.0, 0, "draft")
def test_whatever_is_reported(drafters, pairs, step_ms: float, turn: int, method: str) -> None:
    known = []
    for number, facts in enumerate(drafters):
        if facts.get("lost"):
            known.append(worker(f"d{number}", lost=True))
        else:
            known.append(drafter(f"d{number}", **{k: v for k, v in facts.items() if k != "lost"}))
    one = verifier(step_ms=step_ms, pairs={f"d{n}": pair for n, pair in pairs.items()})
    usable = {each.address for each in known if each.available}
    if method == "draft" and not usable:
        return
    found = offered(one, *known, method=method, turn=turn)
    assert len(set(found)) == len(found) <= MOST_DRAFTERS
    assert set(found) <= usable
    assert found or method == "auto"


@pytest.mark.parametrize("fleet", [4, 64])
def test_a_large_fleet_is_judged_from_one_snapshot(fleet: int) -> None:
    names = [f"d{n}" for n in range(fleet)]
    verifiers = [
        verifier(f"v{n}", pairs={name: measured(1.5 + n / 10) for name in names}) for n in range(8)
    ]
    drafters = [drafter(name, step_ms=3 + n / 10) for n, name in enumerate(names)]
    assert len(place("auto", verifiers, drafters).drafters) == min(fleet, MOST_DRAFTERS)
