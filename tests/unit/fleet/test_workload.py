"""A plan's input: file, options, and what is refused."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from common.errors import ConfigError
from fleet.workload import ModelSize, PlanConfig, Traffic, load_plan


def test_options_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(
        "acceptance: 0.6\ndrafters: [T4]\ntraffic: {requests_per_s: 3, prompt_tokens: 9}\n"
        "assumptions: {memory_efficiency: 0.5}\nmost: [T4=8, L4=2]\n"
    )
    given = {"traffic.requests_per_s": 5.0, "verifiers": ["H200", "B200"], "acceptance": None}
    config = load_plan(file, given)
    assert config.traffic == Traffic(requests_per_s=5.0, prompt_tokens=9)
    assert (config.acceptance, config.drafters) == (0.6, ("T4",))
    assert config.verifiers == ("H200", "B200")
    assert config.assumptions.memory_efficiency == 0.5
    assert config.limits == {"T4": 8, "L4": 2}


def test_an_empty_list_is_given(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text("drafters: [T4]\nmost: [T4=8]\n")
    config = load_plan(file, {"drafters": [], "most": None})
    assert (config.drafters, config.most) == ((), ("T4=8",))
    file.write_text("drafters: []\n")
    assert load_plan(file, {}).drafters == ()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"acceptance": 1.5}, r"acceptance: must be in \[0, 1\]"),
        ({"acceptance": "often"}, "must be number"),
        ({"goal.token_ms": 0}, "goal.token_ms: must be from 1e-06"),
        ({"goal.first_token_ms": -1}, "goal.first_token_ms: must be from 1e-06"),
        ({"goal.most_load": 2}, r"goal.most_load: must be in \[0, 1\]"),
        ({"traffic.requests_per_s": "inf"}, "traffic.requests.per.s: must be"),
        ({"traffic.output_tokens": 1}, "traffic.output_tokens: must be in"),
        ({"target.layers": 0}, "target.layers: must be from 1e-06"),
        ({"assumptions.memory_use": 1.1}, "assumptions.memory_use"),
        (
            {"assumptions.overhead_ms": -8},
            "assumptions.overhead_ms: must be 0 or from 1e-06",
        ),
        ({"assumptions.drafter_context_tokens": -5}, "must be 0 or from 1e-06"),
        ({"round_trip_ms": "nan"}, "round.trip.ms: must be"),
        ({"verifiers": [""]}, "verifiers: must name"),
        ({"verifiers": []}, "verifiers: must name"),
        ({"most": ["T4"]}, "most: must be NAME=COUNT"),
        ({"most": ["T4=²"]}, "most: must be NAME=COUNT"),
        (
            {"target.total_params_billion": 0},
            "target.total_params_billion: must be from 1e-06",
        ),
        ({"target.total_params_billion": 7}, "target.total_params_billion: must be at least"),
        ({"gaol.token_ms": 3}, "the nearest known one is --goal.token-ms"),
    ],
)
def test_what_is_refused(given: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_plan(None, given).limits  # noqa: B018


def test_sizes() -> None:
    size = ModelSize(params_billion=8, layers=32, kv_heads=8, head_size=128)
    assert size.weight_bytes == size.stored_bytes == 16e9
    assert size.kv_bytes_per_token == 131072, "of Llama-3.1-8B: 128 KiB a token"
    assert PlanConfig().traffic.tokens_per_s == 2560


def test_the_documented_file_has_every_setting(tmp_path: Path) -> None:
    documented = (Path(__file__).parents[3] / "docs" / "fleet.md").read_text(encoding="utf-8")
    text = documented.partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "plan.yaml").write_text(text)

    def missing(group: Any, given: dict[str, Any], prefix: str = "") -> list[str]:
        found = []
        for field in fields(group):
            value, key = getattr(group, field.name), prefix + field.name
            if field.name not in given:
                found.append(key)
            elif is_dataclass(value):
                found += missing(value, given[field.name], f"{key}.")
        return found

    plan = load_plan(tmp_path / "plan.yaml", {})
    of_target = ("total_params_billion", "bytes_per_param", "kv_bytes_per_value")
    lacking = set(missing(plan, yaml.safe_load(text)))
    assert lacking == {f"draft.{name}" for name in of_target}  # shown of the target
