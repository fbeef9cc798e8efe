"""Requests that come as they please: when they come, and what is told of their waits."""

from __future__ import annotations

from dataclasses import astuple

import pytest

from bench import traffic
from bench.waits import Run, Wait, arrivals, summed
from common.errors import StartupError


def test_requests_come_at_their_rate_and_the_same_ones_again() -> None:
    found = arrivals(5, 400, count=3, max_tokens=64, seed=1)
    assert found == arrivals(5, 400, count=3, max_tokens=64, seed=1)
    assert found != arrivals(5, 400, count=3, max_tokens=64, seed=2)
    assert len(found) == pytest.approx(2000, abs=4 * 2000**0.5)
    assert [one.at_s for one in found] == sorted(one.at_s for one in found)
    assert found[-1].at_s < 400
    assert {one.prompt for one in found} == {0, 1, 2}
    assert {one.tokens for one in found} == set(range(8, 65))


def test_one_comes_at_least() -> None:
    assert len(arrivals(0.01, 1, count=1, max_tokens=2, seed=1)) == 1


def test_waits_are_summed_up() -> None:
    waits = [Wait(first_s=first_s, whole_s=first_s + 0.3, tokens=4) for first_s in (0.1, 0.2)]
    line = summed(2.0, "plain", Run(waits, refused=1, span_s=2.0))
    assert (line.requests, line.refused, line.tokens_per_s) == (2, 1, 4.0)
    assert line.at_once == pytest.approx((0.4 + 0.5) / 2)
    assert astuple(line.first) == pytest.approx((150, 190, 199))
    assert astuple(line.token) == pytest.approx((100, 100, 100))
    assert astuple(line.whole) == pytest.approx((450, 490, 499))
    assert line.text().split()[:9] == ["2", "plain", "2", "1", "4", "0.5", "150", "190", "199"]


def test_a_text_of_one_token_has_no_further_ones() -> None:
    assert Wait(first_s=0.1, whole_s=0.1, tokens=1).token_s == 0


def test_where_all_is_refused_there_is_nothing_to_tell() -> None:
    with pytest.raises(StartupError, match=r"plain at 9/s: all of 3 requests were refused"):
        summed(9.0, "plain", Run(refused=3, span_s=1.0))


@pytest.mark.parametrize("name", ["waits.doc", "waits", "nowhere/waits.png", "/a.png/b.png"])
def test_what_cannot_be_drawn_shows_at_once(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(SystemExit):
        traffic.main(["--plot", name])
    assert (
        "--plot: must be a file that can be written and ends with .png" in capsys.readouterr().err
    )
