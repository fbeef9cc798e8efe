"""Packing says of every n-gram how often it stood in the texts, and of nothing else."""

from __future__ import annotations

import struct
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from common.store.pool_packing import MOST_HITS, count, pack

TEXTS = st.lists(st.lists(st.integers(0, 3) | st.integers(0, 2**32 - 1), max_size=40), max_size=6)


@given(texts=TEXTS, tokens=st.integers(2, 5), most=st.integers(1, 70))
def test_every_ngram_is_packed_once_with_its_occurrences(
    texts: list[list[int]], tokens: int, most: int
) -> None:
    expected = Counter(
        tuple(text[at : at + tokens]) for text in texts for at in range(len(text) - tokens + 1)
    )
    record, found, firsts = struct.Struct(f"<B{tokens - 1}I"), Counter[tuple[int, ...]](), []
    for packed in pack(texts, tokens, most):
        records = list(record.iter_unpack(packed.records))
        assert 1 <= len(records) <= most
        assert packed.ngrams == sum(hits for hits, *_ in records)
        for hits, *tail in records:
            assert (packed.first, *tail) not in found
            found[packed.first, *tail] = hits
        firsts.append(packed.first)
    assert found == expected
    assert firsts == sorted(firsts)
    assert sum(found.values()) == sum(count(len(text), tokens) for text in texts)


def test_occurrences_that_no_record_can_hold_are_counted_all_the_same() -> None:
    (packed,) = pack([[7] * 1003], 4, 64)
    assert packed.records[0] == MOST_HITS
    assert packed.ngrams == 1000
