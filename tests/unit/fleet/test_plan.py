"""Plans: they meet their goal, nothing smaller does, and what cannot be is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.errors import FailedPrecondition, InvalidArgument
from fleet.estimate import Estimate, estimate
from fleet.layout import Layout
from fleet.plan import Option, meets, plan
from fleet.plan_tables import data, tables, verdict
from fleet.simulation import check
from fleet.workload import Goal, ModelSize, PlanConfig, Traffic
from tests.unit.fleet.test_tables import drawn

LARGE = PlanConfig(
    target=ModelSize(params_billion=32, layers=64, kv_heads=8, head_size=128),
    acceptance=0.75,
    verifiers=("H200",),
    drafters=("T4",),
    traffic=Traffic(requests_per_s=8),
    goal=Goal(token_ms=25),
)


@pytest.fixture(scope="module")
def options() -> list[Option]:
    return plan(LARGE)


def test_every_option_meets_the_goal(options: list[Option]) -> None:
    assert len(options) == 2
    for option in options:
        assert meets(option.layout, LARGE)
        assert 1e3 * option.estimate.token_s <= 25
        assert option.estimate.load <= 0.8
        assert option.estimate == estimate(option.layout, LARGE)


def test_nothing_smaller_does(options: list[Option]) -> None:
    for option in options:
        layout = option.layout
        fewer = [replace(layout, verifiers=layout.verifiers - 1)] if layout.verifiers > 1 else []
        if layout.drafters > 1:
            fewer.append(replace(layout, drafters=layout.drafters - 1))
        assert fewer
        assert not any(meets(each, LARGE) for each in fewer)


def test_cheap_drafters_save_verifiers(options: list[Option]) -> None:
    cheapest, plain = options
    assert cheapest.layout.drafter is not None
    assert plain.layout.drafter is None
    assert cheapest.layout.verifiers < plain.layout.verifiers
    assert cheapest.cost_per_million < plain.cost_per_million
    tokens_per_hour = 3600 * 8 * 256
    price = 1e6 * cheapest.layout.cost_per_hour / tokens_per_hour
    assert cheapest.cost_per_million == pytest.approx(price)


def test_a_large_fleet_is_found_in_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is looked at that costs more than the best so far."""
    looked: list[Layout] = []

    def noted(layout: Layout, config: PlanConfig) -> Estimate | None:
        looked.append(layout)
        return estimate(layout, config)

    monkeypatch.setattr("fleet.plan.estimate", noted)
    told: list[str] = []
    options = plan(replace(LARGE, traffic=Traffic(requests_per_s=60)), told.append)
    assert told == ["H200", "H200 with T4"]
    assert options[0].layout.verifiers > 8
    assert len(looked) < 250


def test_a_draft_that_is_never_right_does_not_pay() -> None:
    options = plan(replace(LARGE, acceptance=0.02))
    assert options[0].layout.drafter is None
    assert "Drafting does not pay" in verdict(LARGE, options).plain


def test_drafters_that_do_not_hold_the_model_are_not_called_too_dear() -> None:
    config = replace(LARGE, draft=replace(LARGE.draft, params_billion=8))
    said = verdict(config, plan(config)).plain
    assert said.endswith("With drafters of these types no fleet meets the goal.")


@pytest.mark.parametrize(
    "config", [replace(LARGE, drafters=()), replace(LARGE, most_draft_tokens=0)]
)
def test_nothing_is_said_of_drafting_that_was_not_considered(config: PlanConfig) -> None:
    said = verdict(config, plan(config)).plain
    assert said.endswith("No drafters were considered: the plan allows none.")
    assert "pay" not in said


def test_a_tighter_goal_costs_more(options: list[Option]) -> None:
    tight = plan(replace(LARGE, goal=Goal(token_ms=17)))
    assert tight[0].layout.cost_per_hour > options[0].layout.cost_per_hour
    soon = plan(replace(LARGE, goal=Goal(token_ms=25, first_token_ms=80)))
    assert soon[0].layout.cost_per_hour > options[0].layout.cost_per_hour
    assert 1e3 * soon[0].estimate.first_token_s <= 80


def test_a_type_may_be_scarce(options: list[Option]) -> None:
    most = options[0].layout.drafters - 1
    scarce = plan(replace(LARGE, most=(f"T4={most}",)))
    assert all(option.layout.drafters <= most for option in scarce)
    assert scarce[0].layout.cost_per_hour > options[0].layout.cost_per_hour


def test_both_tiers_of_one_type_share_what_there_is_of_it() -> None:
    config = replace(PlanConfig(), verifiers=("A100-80",), drafters=("A100-80",), acceptance=0.8)
    config = replace(config, traffic=Traffic(requests_per_s=8), goal=Goal(token_ms=12))
    paired = plan(replace(config, most=("A100-80=2",)))[0].layout
    assert (paired.verifiers, paired.drafters) == (1, 1)
    with pytest.raises(FailedPrecondition, match="no fleet"):
        plan(replace(config, most=("A100-80=1",)))


def test_of_a_type_there_may_be_none() -> None:
    config = replace(LARGE, most=("T4=0",))
    options = plan(config)
    assert [option.layout.drafter for option in options] == [None]
    assert verdict(config, options).plain.endswith("the plan allows none.")


def test_memory_holds_all_experts_and_a_step_reads_a_tokens() -> None:
    experts = ModelSize(
        params_billion=3, total_params_billion=30, layers=48, kv_heads=4, head_size=128
    )
    config = replace(LARGE, target=experts, drafters=(), verifiers=("A10", "A100-80"))
    (option,) = plan(config)
    assert option.layout.verifier.name == "A100-80"
    dense = replace(config, target=replace(experts, total_params_billion=None))
    assert option.estimate == estimate(option.layout, dense)
    assert "target 3B of 30B at 2 bytes" in drawn(tables(config, [option], None))


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(FailedPrecondition, match=r"no fleet of these GPU types reaches 0\.1 ms"):
        plan(replace(LARGE, goal=Goal(token_ms=0.1)))
    with pytest.raises(FailedPrecondition, match="with up to 4096 each of H200, T4; allow"):
        plan(replace(LARGE, goal=Goal(token_ms=0.1)))
    with pytest.raises(FailedPrecondition, match=r"80%; allow .* of a type \(--most TYPE=COUNT"):
        plan(replace(LARGE, goal=Goal(token_ms=0.1), most=("T4=8", "H200=1")))
    with pytest.raises(FailedPrecondition, match="and 1 ms to the first at a load"):
        plan(replace(LARGE, goal=Goal(token_ms=25, first_token_ms=1)))
    with pytest.raises(FailedPrecondition, match="do not fit into the memory of T4"):
        plan(replace(LARGE, verifiers=("T4",)))
    with pytest.raises(InvalidArgument, match="verifiers: must be of"):
        plan(replace(LARGE, verifiers=("X",)))


def test_it_is_drawn_and_told_as_data(options: list[Option]) -> None:
    played = check(options[0].layout, options[0].estimate, LARGE, seed=3)
    assert played == check(options[0].layout, options[0].estimate, LARGE, seed=3)
    ratio = options[0].estimate.token_s / played.token_s
    assert 0.8 < ratio < 1.25, "the planned fleet does what the plan says"
    text = drawn(tables(LARGE, options, played))
    assert "2 x H200" in text
    assert "drafting saves" in text
    assert "simulated" in text
    told = data(LARGE, options, played)
    assert told["input"]["goal"]["token_ms"] == 25
    assert told["options"][0]["drafter"] == "T4"
    assert told["simulation"]["token_s"] == played.token_s
    assert data(LARGE, options, None)["simulation"] is None
