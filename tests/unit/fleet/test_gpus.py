"""GPU types: those known, and prices and types of one's own."""

from __future__ import annotations

import pytest

from common.errors import InvalidArgument
from fleet.gpus import GPUS, catalogue, chosen


def test_a_price_changes_nothing_else() -> None:
    cheap = catalogue(["T4=0.35"])["T4"]
    assert cheap.cost_per_hour == 0.35
    assert cheap.bandwidth_gb_s == GPUS["T4"].bandwidth_gb_s
    assert GPUS["T4"].cost_per_hour == 0.5


def test_a_type_of_ones_own() -> None:
    mine = catalogue(["mine=24/600/125/0.9"])["mine"]
    assert (mine.memory_gb, mine.bandwidth_gb_s, mine.tflops) == (24, 600, 125)


@pytest.mark.parametrize(
    "text",
    ["T4", "T4=", "T4=x", "T4=-1", "T4=1e-320", "T4=1e308", "new=1", "T4=1/2", "=1/2/3/4", ""],
)
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="gpu: must be NAME=PRICE"):
        catalogue([text])


def test_unknown_names_are_refused() -> None:
    assert [gpu.name for gpu in chosen("drafters", ("L4", "T4"), GPUS)] == ["L4", "T4"]
    assert [gpu.name for gpu in chosen("drafters", ("T4", "L4", "T4"), GPUS)] == ["T4", "L4"]
    with pytest.raises(InvalidArgument, match=r"drafters: must be of T4, .*, got 'V100'"):
        chosen("drafters", ("V100",), GPUS)


def test_newer_is_faster() -> None:
    order = ("A10", "A100-40", "A100-80", "H100", "H200", "B200")
    speeds = [GPUS[name].bandwidth_gb_s for name in order]
    assert speeds == sorted(speeds)
