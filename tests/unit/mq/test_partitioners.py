"""Partitioners: the same answer everywhere, and what growing a topic does to keys."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conquiet.mq import ConsistentHashPartitioner, HashPartitioner, RoundRobinPartitioner
from conquiet.mq.send.partitioners import stable_hash
from tests.eventually import HANG_S

KEYS = [f"customer-{n}" for n in range(4_000)]

keys = st.text(alphabet=st.characters(exclude_categories=["Cs"]))


@pytest.mark.parametrize(
    ("key", "digest"),
    [
        ("", 0xE4A6A0577479B2B4),
        ("anna", 0xD04474CC4B844A8C),
        ("Ωmega\x00", 0xBA9257F1B7124C1B),
    ],
)
def test_a_keys_hash_never_changes(key, digest):
    assert stable_hash(key) == digest


def test_a_keys_partition_never_changes():
    names = ["anna", "ben", "clara", "Ωmega", ""]

    assert [HashPartitioner().partition_for(name, 16) for name in names] == [12, 0, 14, 12, 4]
    assert [ConsistentHashPartitioner().partition_for(name, 16) for name in names] == [11, 1, 7, 9, 5]


def test_another_process_with_another_hash_seed_agrees():
    program = (
        "import json, sys; from conquiet.mq import *;"
        "keys = json.load(sys.stdin);"
        "print(json.dumps([[p().partition_for(key, 7) for key in keys]"
        " for p in (HashPartitioner, ConsistentHashPartitioner)]))"
    )
    sample = KEYS[:50]
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONHASHSEED": "4711"},
        input=json.dumps(sample),
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_S,
    )

    partitioners = (HashPartitioner(), ConsistentHashPartitioner())
    assert json.loads(done.stdout) == [[p.partition_for(key, 7) for key in sample] for p in partitioners]


@pytest.mark.parametrize("make", [HashPartitioner, ConsistentHashPartitioner, RoundRobinPartitioner])
@given(key=st.none() | keys, count=st.integers(1, 1_000))
def test_the_partition_exists(make, key, count):
    assert 0 <= make().partition_for(key, count) < count


@pytest.mark.parametrize("make", [HashPartitioner, ConsistentHashPartitioner])
def test_keys_spread_evenly(make):
    partitioner = make()
    found = Counter(partitioner.partition_for(key, 8) for key in KEYS)

    assert len(found) == 8
    assert max(found.values()) < 1.25 * len(KEYS) / 8


@pytest.mark.parametrize("count", [1, 2, 7, 31])
def test_growing_by_one_moves_only_the_new_partitions_share_with_consistent_hashing(count):
    partitioner = ConsistentHashPartitioner()

    moved = [
        partitioner.partition_for(key, count + 1)
        for key in KEYS
        if partitioner.partition_for(key, count) != partitioner.partition_for(key, count + 1)
    ]

    assert set(moved) == {count}
    assert len(moved) == pytest.approx(len(KEYS) / (count + 1), rel=0.3)


def test_round_robin_goes_round_whatever_the_key():
    partitioner = RoundRobinPartitioner()

    found = [partitioner.partition_for("anna", 3) for _ in range(9)]

    assert Counter(found) == {0: 3, 1: 3, 2: 3}
    assert all((after - before) % 3 == 1 for before, after in itertools.pairwise(found))


@pytest.mark.parametrize("make", [HashPartitioner, ConsistentHashPartitioner])
def test_messages_without_a_key_go_round(make):
    partitioner = make()

    assert Counter(partitioner.partition_for(None, 4) for _ in range(8)) == {0: 2, 1: 2, 2: 2, 3: 2}
