"""The pure parts of a drain: batch sizes, limits, the report, names."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from conquiet import DrainFailure, DrainLimits, DrainReport
from conquiet.consume import dead_letter_stream
from conquiet.errors import MalformedEntry
from conquiet.queue.batch_size import BATCH_BYTES, BatchSize
from conquiet.queue.message import Delivery, QueueMessage


def sizes_of(messages: Sequence[int], seconds: float, largest: int = 100) -> list[int]:
    """The batch sizes asked for, if each read brings messages of so many bytes."""
    batch_size, sizes = BatchSize(largest), []
    for message_bytes in messages:
        sizes.append(batch_size.next)
        data = b"x" * message_bytes
        batch_size.learn(Delivery([QueueMessage("s", "g", "1-0", {}, data=data)] * batch_size.next, []))
        batch_size.took(seconds)
    return sizes


def test_the_first_read_asks_for_few_and_quick_batches_double_up_to_the_largest():
    assert sizes_of([100] * 6, 0.01) == [10, 20, 40, 80, 100, 100]
    assert sizes_of([100] * 3, 0.01, largest=3) == [3, 3, 3]


def test_slow_batches_halve_down_to_one():
    assert sizes_of([100] * 6, 2.0) == [10, 5, 2, 1, 1, 1]


def test_large_messages_make_batches_smaller_at_once_and_small_ones_larger_step_by_step():
    megabyte = 1 << 20

    assert sizes_of([4 * megabyte] * 3, 0.01) == [10, 2, 2]
    assert sizes_of([100, 100, 100, 4 * megabyte, 100, 100, 100, 100], 0.01) == [10, 20, 40, 80, 2, 4, 8, 16]


def test_a_message_beyond_the_budget_is_read_alone():
    assert sizes_of([2 * BATCH_BYTES] * 2, 0.01) == [10, 1]


def test_malformed_entries_have_a_size_too():
    batch_size = BatchSize(100)
    entry = MalformedEntry("1-0", ((b"a", b"x" * BATCH_BYTES), (b"b", b"")), 1, "it has two fields")

    batch_size.learn(Delivery([], [entry]))

    assert batch_size.next == 1


def test_where_the_channel_bounds_its_batches_itself_the_size_stays():
    batch_size = BatchSize(100, adapts=False)

    batch_size.learn(Delivery([QueueMessage("s", "g", "1-0", {}, data=b"x" * BATCH_BYTES)], []))
    batch_size.took(60)

    assert batch_size.next == 100


def test_a_read_that_brought_nothing_teaches_nothing():
    batch_size = BatchSize(100)

    batch_size.learn(Delivery([], []))

    assert batch_size.next == 10


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_messages", 0),
        ("max_messages", "10"),
        ("batch_size", True),
        ("max_failures", 0),
        ("max_deliveries", -1),
        ("max_duration_s", 0),
        ("max_duration_s", float("nan")),
        ("on_error", "ignore"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(name, value):
    with pytest.raises((TypeError, ValueError), match=f"{name} .*{value!r}"):
        DrainLimits(**{"max_messages": 10} | {name: value})


@given(
    stream=st.text(max_size=3_000),
    group=st.text(max_size=3_000),
    errors=st.lists(st.text(max_size=2_000), max_size=30),
)
def test_the_json_form_of_a_report_is_below_4_kb_whatever_failed(stream, group, errors):
    failures = tuple(DrainFailure(f"{n}-0", ValueError(error)) for n, error in enumerate(errors))
    report = DrainReport(stream=stream, group=group, failed=len(errors), failures=failures)

    text = report.to_json()

    assert len(text.encode()) < 4_096
    assert json.loads(text)["failed"] == len(errors)


def test_the_json_form_of_a_report_names_the_first_failures():
    failures = tuple(DrainFailure(f"{n}-0", ValueError(f"order {n}")) for n in range(30))

    shown = DrainReport(stream="orders", group="billing", failures=failures).to_dict()["failures"]

    assert shown[0] == {"id": "0-0", "error": "ValueError: order 0"}
    assert len(shown) == 10


@pytest.mark.parametrize(
    "stream", ["orders", "eu:orders", "{orders}:p:0", "stream:topic:{orders:p:0}", "a{b"]
)
def test_the_dead_letters_of_a_stream_lie_in_its_cluster_slot(stream):
    assert key_slot(dead_letter_stream(stream).encode()) == key_slot(stream.encode())
