"""Each illness is found, named with its figures, and told with a remedy; health is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from paceline import Model

from fleet.doctor import CHECKS, findings
from fleet.finding import Evidence, Finding, Severity
from fleet.snapshot import Pool, Snapshot, State, Tier
from tests.unit.fleet.samples import identity, load, measured, pair, snapshot, worker

V1, V2, D1 = worker("v1"), worker("v2"), worker("d1")


def examined(**changes: Any) -> list[Finding]:
    return findings(Evidence(now=snapshot(**changes), before=snapshot()))


def whats(found: Sequence[Finding]) -> list[str]:
    return [finding.what for finding in found]


def model(**changes: Any) -> Model:
    fields = {"name": "big", "max_model_len": 9, "vocab_size": 9, "methods": ("plain",)}
    more = {"has_tokenizer": True, "has_chat_template": True, "eos_token_ids": ()}
    return Model(**{**fields, **more, **changes})  # type: ignore[arg-type]


def test_health_is_not_an_illness() -> None:
    assert findings(Evidence(now=snapshot(), before=snapshot(), models=[model()])) == []
    assert findings(Evidence(now=snapshot())) == []


def test_every_check_is_run() -> None:
    assert len(set(CHECKS)) == len(CHECKS) == 14


@pytest.mark.parametrize(
    ("changes", "severity", "what", "remedy"),
    [
        (
            {"workers": (D1,), "pairs": ()},
            Severity.ERROR,
            "no verifier is listed",
            "setting `verifiers`",
        ),
        (
            {"workers": (replace(V1, state=State.LOST, load=None), D1)},
            Severity.ERROR,
            "no verifier of big is ready",
            "start a verifier",
        ),
        (
            {"workers": (V1, replace(V2, state=State.LOST, load=None), D1)},
            Severity.ERROR,
            "verifier v2 is lost",
            "look at its log",
        ),
        (
            {"workers": (V1, replace(V2, state=State.LOST, load=None, identity=None), D1)},
            Severity.ERROR,
            "verifier v2 was never reached",
            "not reachable yet",
        ),
        (
            {"workers": (V1, replace(V2, state=State.BROKEN), D1)},
            Severity.ERROR,
            "verifier v2 is broken",
            "drain and replace",
        ),
        (
            {"workers": (V1, V2, worker("d1", identity=identity(version="0.2.0", methods=())))},
            Severity.WARNING,
            "different versions: 0.1.0: v1, v2; 0.2.0: d1",
            "one image",
        ),
        (
            {"pairs": (pair("v1", misfit="its tokenizer differs"), pair("v2", misfit="no"))},
            Severity.ERROR,
            "drafter d1 (small) fits no verifier: its tokenizer differs; no",
            "target's own tokenizer",
        ),
        (
            {"workers": (V1, V2), "pairs": ()},
            Severity.WARNING,
            "no drafter is ready for big",
            "start drafters",
        ),
        (
            {"workers": (V1, V2, worker("v3", identity=identity(tokenizer="u")), D1)},
            Severity.WARNING,
            "verifiers of big differ in tokenizer or vocabulary: t, 4096 ids: v1, v2; u, 4096 ids",
            "setting `name`",
        ),
        (
            {"workers": (V1, V2, worker("v3", identity=identity(vocab_size=4097)), D1)},
            Severity.WARNING,
            "vocabulary: t, 4096 ids: v1, v2; t, 4097 ids: v3",
            "one model directory",
        ),
        (
            {"workers": (V1, worker("v2", identity=identity(numerics="m")), D1)},
            Severity.WARNING,
            "verifiers of big compute with different numerics: n: v1; m: v2",
            "two verifiers at least",
        ),
        (
            {"workers": (worker("v1", load=load(kv_blocks_free=50)), V2, D1)},
            Severity.WARNING,
            "verifier v1: 95% of its key/value cache",
            "engine.kv_bytes",
        ),
        (
            {"pools": (Pool(tier=Tier.DRAFTER, name="t4", ready=1, desired=3),)},
            Severity.WARNING,
            "pool drafter/t4 has 1 ready, the load calls for 3",
            "scale drafter/t4 (`paceline fleet scale`) to 3",
        ),
        (
            {"workers": (V1, worker("v2", identity=identity(model="other", methods=())), D1)},
            Severity.WARNING,
            "pool verifier/h100 serves different models: big: v1; other: v2",
            "a pool of its own",
        ),
        (
            {"pairs": (pair("v1", offered=False), pair("v2", offered=False))},
            Severity.WARNING,
            "drafter d1 fits, but no verifier is offered it",
            "paceline fleet pairs",
        ),
        (
            {"pairs": (pair(measured=measured(acceptance=0.3)),)},
            Severity.WARNING,
            "verifier v1 with drafter d1: acceptance 30%, below 50%",
            "paceline train distill",
        ),
        (
            {"pairs": (pair(measured=measured(round_trip_ms=45.0)),)},
            Severity.WARNING,
            "round trip 45.0 ms, longer than a verify step (30.0 ms)",
            "move drafters into the verifier's zone",
        ),
        (
            {"pairs": (pair(measured=measured(round_trip_ms=45.0, lane="none")),)},
            Severity.WARNING,
            "round trip 45.0 ms, longer than a verify step (30.0 ms)",
            "a --lane-port of drafters",
        ),
        (
            {"pairs": (pair(measured=measured(draft_ms=24.0)),)},
            Severity.WARNING,
            "a draft token takes 24.0 ms, 80% of a verify step (30.0 ms), and 75% are right",
            "smaller draft model",
        ),
        (
            {"pairs": (pair(measured=measured(draft_ms=8.0)),)},
            Severity.WARNING,
            "drafting 4.0 tokens ahead takes 40 ms, a verify step 30 ms",
            "faster GPU",
        ),
        (
            {"pairs": (pair(measured=measured(gain=0.8)),)},
            Severity.WARNING,
            "gain 0.80, slower than without drafts",
            "take the drafter away",
        ),
    ],
)
def test_one_illness(changes: dict[str, Any], severity: Severity, what: str, remedy: str) -> None:
    found = [finding for finding in examined(**changes) if what in finding.what]
    assert len(found) == 1, whats(examined(**changes))
    assert found[0].severity is severity
    assert found[0].why
    assert remedy in found[0].remedy


def test_errors_come_first() -> None:
    ill = examined(
        workers=(replace(V1, state=State.BROKEN), V2, worker("d1", load=load(kv_blocks_free=0)))
    )
    assert [finding.severity for finding in ill] == [Severity.ERROR, Severity.WARNING]


def queue(waiting: int) -> Snapshot:
    return snapshot(workers=(worker("v1", load=load(waiting=waiting, queue_wait_ms=70)), V2, D1))


@pytest.mark.parametrize(
    ("before", "now", "found"), [(2, 3, True), (3, 3, True), (3, 2, False), (0, 3, False)]
)
def test_a_queue_that_does_not_shrink(before: int, now: int, found: bool) -> None:
    told = whats(findings(Evidence(now=queue(now), before=queue(before))))
    wanted = f"verifier v1: {now} sequences wait ({before} a moment ago), for 70 ms"
    assert told == ([wanted] if found else [])


def test_branches_in_the_making_are_no_queue() -> None:
    drafting = replace(D1, load=load(running=2, waiting=2))
    looked = snapshot(workers=(V1, V2, drafting))
    assert findings(Evidence(now=looked, before=looked)) == []


def test_what_was_hardly_tried_is_not_judged() -> None:
    bad = measured(acceptance=0.1, gain=0.2, round_trip_ms=99.0, drafted_tokens=199)
    assert examined(pairs=(pair(measured=bad), pair("v2"))) == []
    assert examined(pairs=(pair(measured=None), pair("v2"))) == []


def test_numerics_that_two_share_can_fail_over() -> None:
    other = identity(numerics="m")
    workers = (V1, V2, worker("v3", identity=other), worker("v4", identity=other), D1)
    assert examined(workers=workers) == []


def test_another_models_drafter_is_no_misfit_of_the_fleet() -> None:
    pairs = (pair("v1"), pair("v2", misfit="its tokenizer differs", offered=False))
    assert examined(pairs=pairs) == []


def test_models_without_a_tokenizer_are_told() -> None:
    evidence = Evidence(now=snapshot(), models=[model(), model(name="raw", has_tokenizer=False)])
    (finding,) = findings(evidence)
    assert finding.what == "raw takes token ids only"
    assert "where it has no tokenizer.json, `AutoTokenizer" in finding.remedy
