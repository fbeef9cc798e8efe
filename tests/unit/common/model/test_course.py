"""Which rows of a roll go on, each as it would alone."""

from __future__ import annotations

import math
from array import array

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from common.model.course import Course
from common.model.roll import Certainty, Limit

BOUNDS = array("f", [0.1, 0.3, 1.2])
_LEADS = st.sampled_from([0.0, *BOUNDS, 0.2, 5.0, math.inf, math.nan])
_PRICES = st.lists(st.sampled_from([0.0, 0.3, 0.6, 1.1]), max_size=3)


@given(st.data(), st.integers(1, 5), st.booleans())
def test_rows_end_each_where_its_own_chances_or_its_text_do(
    data: st.DataObject, rows: int, limited: bool
) -> None:
    each = {"min_size": rows, "max_size": rows}
    chances = [array("f", [0.5, 0.7, 0.9, 1.0]), array("f", [0.6, 0.8, 0.95, 1.0])]
    certainty = Certainty(
        BOUNDS,
        data.draw(st.lists(st.sampled_from(chances), **each)),
        data.draw(st.lists(_PRICES, **each)),
        data.draw(st.lists(st.integers(-2, 2), **each)),
        data.draw(st.lists(st.sampled_from([1.0, 0.8]), **each)),
    )
    limits = [Limit(3, (7,))] * rows if limited else []
    course, alive, right = Course(rows, certainty, limits), [*range(rows)], [*certainty.right]
    for level in range(4):
        ids = np.array(data.draw(st.lists(st.just([7, 1]) | st.just([8, 1]), **each)))
        gaps = data.draw(st.lists(st.tuples(st.just(0.0), _LEADS), **each))
        behind = np.array(gaps, dtype=np.float32)
        found, told = course.take(ids, behind)
        assert told is behind
        assert found.tolist() == [
            line if i in alive else [-1] * 2 for i, line in enumerate(ids.tolist())
        ]
        for row in [*alive]:
            over = limited and (level == 2 or ids[row, 0] == 7)
            token, least = certainty.tokens[row] + level, certainty.least[row]
            if not over and token >= 0:
                place = np.searchsorted(BOUNDS, behind[row, 1], "right")
                right[row] *= certainty.chances[row][place]
                over = bool(least) and right[row] < least[min(token, len(least) - 1)]
            if over:
                alive.remove(row)
        assert course.alive == alive
