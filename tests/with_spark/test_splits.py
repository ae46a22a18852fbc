"""A stream is cut into parts of about the same number of entries, however uneven its entries arrived."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conquiet.spark.entry_ids import EntryId, IdRange
from conquiet.spark.read.cuts import cut

_DAY = 1_700_000_000_000
_RANDOM = random.Random(7)

ARRIVALS = {
    "evenly": [EntryId(_DAY + number) for number in range(50_000)],
    "in scripts of 500": [EntryId(_DAY + 2 * (number // 500), number % 500) for number in range(50_000)],
    "in two bursts, ten hours apart": [
        EntryId(_DAY + hours * 3_600_000 + number // 100, number % 100)
        for hours in (0, 10)
        for number in range(25_000)
    ],
    "in one millisecond": [EntryId(1, number + 1) for number in range(50_000)],
    "more and more rarely": [EntryId(int(_DAY + 1.0002**number * 1_000)) for number in range(50_000)],
    "at random": [
        EntryId(_DAY + int(_RANDOM.expovariate(1 / 3.6e6)), _RANDOM.randrange(1 << 16)) for _ in range(50_000)
    ],
    "in a burst with a thin tail": [
        *(EntryId(_DAY + number // 300, number % 300) for number in range(45_000)),
        *(EntryId(_DAY + 10_000 + number * 5_000) for number in range(5_000)),
    ],
}


def counts_of_parts(ids: list[EntryId], rows_per_split: int) -> list[int]:
    """How many ids each part has; checks that parts follow each other without a gap."""

    def sample(points):
        found = []
        for point in points:
            place = bisect_left(ids, point)
            some = ids[place : place + 64]
            found.append((some[0], some[-1], len(some)) if some else None)
        return found

    parts = cut(IdRange(ids[0], ids[-1]), len(ids), rows_per_split, sample)
    assert (parts[0].first, parts[-1].last) == (ids[0], ids[-1])
    assert all(before.last.next() == after.first for before, after in pairwise(parts))
    return [bisect_right(ids, part.last) - bisect_left(ids, part.first) for part in parts]


@pytest.mark.parametrize("arrival", ARRIVALS)
def test_parts_are_about_equal(arrival):
    ids = sorted(set(ARRIVALS[arrival]))

    counts = counts_of_parts(ids, 5_000)

    assert sum(counts) == len(ids)
    assert max(counts) < 1.6 * 5_000
    assert len(counts) >= 8


@settings(max_examples=100)
@given(
    st.sets(st.tuples(st.integers(0, 2**63), st.integers(0, 2**63)), min_size=1, max_size=200),
    st.integers(1, 50),
)
def test_every_entry_is_in_exactly_one_part(pairs, rows_per_split):
    ids = sorted(EntryId(ms, sequence + 1) for ms, sequence in pairs)

    counts = counts_of_parts(ids, rows_per_split)

    assert sum(counts) == len(ids)
    assert all(counts)
