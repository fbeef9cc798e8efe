"""Who serves a request: least expected wait, fitting drafters only, methods resolved."""

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from common.drafters import misfit
from common.errors import FailedPrecondition, Unavailable
from gateway.candidate import Load
from gateway.placement import alike, offered_methods, place
from tests.unit.gateway import candidates
from tests.unit.gateway.candidates import verifier

JOINED = Load(accepting=True, running=0, waiting=0, step_ms=0.0, plain_step_ms=100.0)

GONE = [{"lost": True}, {"accepting": False}, {"broken": True}]

worker = partial(candidates.worker, step_ms=10.0)
FOREIGN = worker("e", tokenizer_fingerprint="g")


def test_least_expected_wait_wins() -> None:
    slow_but_idle = worker("a", running=1, waiting=0, step_ms=30)
    fast_but_busy = worker("b", running=3, waiting=2, step_ms=5)
    assert place("plain", [slow_but_idle, fast_but_busy], []).verifier == "b"
    busier = worker("b", running=3, waiting=5, step_ms=5)
    assert place("plain", [slow_but_idle, busier], []).verifier == "a"


def test_own_requests_count_before_the_load_report_shows_them() -> None:
    assert place("plain", [worker("a", in_flight=2), worker("b")], []).verifier == "b"
    alike_busy = [worker("a", running=3, in_flight=2), worker("b", running=3)]
    assert place("plain", alike_busy, []).verifier == "b"
    assert (
        place("plain", [worker("a", step_ms=0, in_flight=1), worker("b", step_ms=0)], []).verifier
        == "b"
    )


def test_one_that_has_just_joined_gets_its_part_of_a_burst() -> None:
    """It has run no step, but knows what a plain one takes: it is not free of charge."""
    sent = Counter({"old": 0, "new": 0})
    for _ in range(40):
        old = verifier("old", step_ms=100.0, in_flight=sent["old"])
        new = replace(verifier("new", in_flight=sent["new"]), load=JOINED)
        sent[place("plain", [old, new], []).verifier] += 1
    assert sent == {"old": 20, "new": 20}


def test_the_owner_of_the_session_is_preferred_while_it_can() -> None:
    busy, idle = worker("a", running=9), worker("b")
    assert place("plain", [busy, idle], [], owner="a").verifier == "a"
    lost = worker("a", lost=True)
    assert place("plain", [lost, idle], [], owner="a").verifier == "b"


def test_who_reports_no_longer_gets_what_nobody_else_can_have() -> None:
    hung, busy = worker("a", late=True), worker("b", running=9)
    assert place("plain", [hung, busy], []).verifier == "b"
    assert place("plain", [hung, busy], [], owner="a").verifier == "b"
    assert place("plain", [hung, busy], [], shunned=["b"]).verifier == "a"
    assert place("plain", [hung], []).verifier == "a"


def test_who_has_just_failed_the_request_is_the_last_resort() -> None:
    busy, idle = worker("a", running=9), worker("b")
    assert place("plain", [busy, idle], [], owner="b", shunned={"b"}).verifier == "a"
    assert place("plain", [idle], [], shunned={"b"}).verifier == "b"


def test_who_takes_too_few_tokens_is_left_out() -> None:
    short, long = worker("a"), worker("b", max_model_len=65, running=9)
    assert place("plain", [short, long], [], owner="a", tokens=64).verifier == "a"
    assert place("plain", [short, long], [], owner="a", tokens=65).verifier == "b"
    with pytest.raises(Unavailable, match="no verifier is available that takes 66 tokens"):
        place("plain", [short, long], [], tokens=66)


def test_a_placement_tells_the_numerics() -> None:
    assert place("plain", [worker("a", numerics_fingerprint="x")], []).numerics == "x"


@pytest.mark.parametrize("gone", GONE)
def test_no_verifier_is_unavailable_and_named(gone) -> None:
    with pytest.raises(Unavailable, match="no verifier is available: h:1"):
        place("auto", [worker("h:1", **gone)], [])


def test_of_one_name_those_serve_that_read_ids_alike() -> None:
    """A loaded tokenizer's first, then those of which most are ready; never one of each."""
    first, second = worker("a"), worker("b")
    assert alike([first, second], ()) == [first, second]
    foreign = [worker(each, tokenizer_fingerprint="g") for each in "cde"]
    larger = worker("f", vocab_size=101)
    fleet = [foreign[0], first, larger, *foreign[1:], second]
    assert alike(fleet, ()) == foreign
    assert alike(fleet, {"f"}) == [first, second]
    gone = [worker(each, tokenizer_fingerprint="g", lost=True) for each in "cde"]
    assert alike([*gone, first], ()) == [first]
    assert alike([*gone, first], {"g"}) == gone, "others might be given ids that mean other text"
    kinds = [worker(each, tokenizer_fingerprint=each) for each in "ghijklmnop"]
    assert alike(kinds, ()) == alike(kinds[::-1], ()) == kinds[-1:]


def test_auto_gets_drafters_where_they_fit() -> None:
    fitting, idle = worker("d1", running=4), worker("d2")
    foreign = worker("d3", tokenizer_fingerprint="other")
    placed = place("auto", [worker("v")], [fitting, foreign, idle])
    assert (placed.method, placed.drafters) == ("auto", ("d2", "d1")), "the verifier settles it"
    assert place("auto", [worker("v")], [foreign]).drafters == ()
    assert place("auto", [worker("v")], [worker("d", lost=True)]).drafters == ()
    assert place("auto", [worker("v", methods=("plain",))], [fitting]).drafters == ()


def test_requests_that_may_draft_are_numbered_by_their_verifier() -> None:
    numbered: list[str] = []

    def turn(chosen: str) -> int:
        numbered.append(chosen)
        return 0

    able, unable, drafters = worker("v"), worker("w", methods=("plain",)), [worker("d")]
    place("plain", [able, unable], drafters, turn=turn)
    place("auto", [able, unable], drafters, owner="w", turn=turn)
    assert numbered == [], "none of these is to use up a trial"
    place("draft", [able, unable], drafters, owner="w", turn=turn)
    place("auto", [able, unable], drafters, owner="v", turn=turn)
    assert numbered == ["v", "v"]


def test_plain_gets_no_drafters() -> None:
    assert place("plain", [worker("v")], [worker("d")]).drafters == ()


def test_a_method_goes_to_the_verifier_that_has_it() -> None:
    able = worker("b", methods=("plain", "medusa"), running=9)
    assert place("medusa", [worker("a"), able], []).verifier == "b"
    assert place("medusa+draft", [worker("c", methods=("draft", "medusa"))], [worker("d")])


@pytest.mark.parametrize("gone", GONE)
def test_a_method_whose_verifiers_are_not_there_for_a_moment_is_unavailable(gone) -> None:
    other, able = worker("a"), worker("b", methods=("plain", "medusa"), **gone)
    wanted = "no verifier that runs medusa is available"
    for known in ({"verifiers": [other, able]}, {"verifiers": [other], "away": [able]}):
        with pytest.raises(Unavailable, match=wanted):
            place("medusa", drafters=[], **known)
        assert place("auto", drafters=[], **known).verifier == "a"
    with pytest.raises(FailedPrecondition, match="has auto, plain, medusa; it cannot run ngram"):
        place("ngram", [other, able], [])
    with pytest.raises(FailedPrecondition, match="it cannot run medusa"):
        place("medusa", [worker("a", max_model_len=65), able], [], tokens=65)
    with pytest.raises(Unavailable, match=wanted):  # the limit rises while the shorter one is away
        place("medusa", [worker("a", max_model_len=65)], [], away=[able], tokens=65)


@pytest.mark.parametrize(
    ("method", "drafters", "message"),
    [
        ("medusa", [], "this deployment has auto, plain; it cannot run medusa"),
        ("draft", [], "it cannot run draft: no drafter is configured"),
        ("medusa+draft", [FOREIGN, worker("d")], "it cannot run medusa+draft"),
        (
            "draft",
            [FOREIGN, FOREIGN],
            "cannot run draft: no drafter fits: its tokenizer (g) differs from the target's (f)",
        ),
    ],
)
def test_a_method_this_deployment_lacks(method, drafters, message) -> None:
    with pytest.raises(FailedPrecondition) as caught:
        place(method, [worker("v")], drafters)
    assert str(caught.value).endswith(message)


def test_a_lost_drafter_fails_no_request() -> None:
    """It may be back in a moment, and the text is the same without."""
    drafters = [worker("d", lost=True)]
    placement = place("draft", [worker("v")], drafters)
    assert (placement.verifier, placement.drafters, placement.method) == ("v", (), "draft")
    assert offered_methods([worker("v")], drafters) == ("plain", "draft")


def test_draft_is_offered_only_with_a_drafter() -> None:
    assert offered_methods([worker("v")], []) == ("plain",)
    assert offered_methods([worker("v")], [worker("d")]) == ("plain", "draft")


def test_drafters_of_one_vocabulary_are_looked_at_once(monkeypatch) -> None:
    looked = Counter()

    def counted(target, drafter):
        looked[drafter.tokenizer_fingerprint] += 1
        return misfit(target, drafter)

    monkeypatch.setattr("gateway.placement.misfit", counted)
    offered_methods([worker(f"v{i}") for i in range(5)], [FOREIGN] * 20)
    assert looked.total() == 5
