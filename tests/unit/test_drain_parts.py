"""The pure parts of a drain: batch sizes, limits, the report, names."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from conquiet import DrainFailure, DrainLimits, DrainReport
from conquiet.consume import dead_letter_stream
from conquiet.consume.engine import next_batch_size


def test_quick_batches_double_up_to_the_largest():
    sizes = [10]
    while len(sizes) < 6:
        sizes.append(next_batch_size(sizes[-1], 0.01, 100))

    assert sizes == [10, 20, 40, 80, 100, 100]


def test_slow_batches_halve_down_to_one():
    sizes = [10]
    while len(sizes) < 6:
        sizes.append(next_batch_size(sizes[-1], 2.0, 100))

    assert sizes == [10, 5, 2, 1, 1, 1]


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
