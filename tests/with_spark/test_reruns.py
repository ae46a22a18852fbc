"""Runs of one write: each row is added once, however the rows are divided among the tasks of each run."""

from __future__ import annotations

import json
import random
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conquiet.errors import QueueError
from conquiet.mq import Topics
from conquiet.spark.errors import RowsDifferError
from conquiet.spark.options import WriteOptions
from conquiet.spark.scripts import new_run_number
from conquiet.spark.task_context import Attempt
from conquiet.spark.write.task_writer import TaskPartitions, check_no_rows_left, open_target
from tests.with_spark.server_side import numbers_in, streams_of
from tests.with_spark.test_task_writer import DiedError, rows_of, send


class Write:
    """A write with a name, whose runs divide its rows among tasks as each test likes."""

    def __init__(self, url: str, batch: int = 0, **place: str) -> None:
        self.url, self.batch, self.place = url, batch, place
        self.write_id = uuid.uuid4().hex
        self.options = WriteOptions.of({"url": url, **place})

    def begin(self) -> int:
        """The number of a new run."""
        with self.options.address.connect() as client:
            return new_run_number(client, "any")

    def attempt(self, run: int, task: int) -> Attempt:
        return Attempt(self.write_id, self.batch, task, run)

    def run(self, *tasks: list[dict[str, object]], dies_after: int | None = None) -> None:
        """One run, one task after the other; with `dies_after` each dies after so many rows."""
        run = self.begin()
        for number, rows in enumerate(tasks):
            try:
                send(self.url, rows, self.attempt(run, number), size=50, dies_after=dies_after, **self.place)
            except DiedError:
                continue
        if dies_after is None:
            self.commit(run)

    def commit(self, run: int) -> None:
        attempt, window_ms = self.attempt(run, 0), self.options.dedupe_window_ms
        with self.options.address.connect() as client:
            streams = open_target(client, self.options).streams
            if self.options.address.topic is not None:
                streams = TaskPartitions(client, streams, attempt, window_ms).recorded_by_all()
            check_no_rows_left(client, streams, attempt, window_ms)


def test_a_run_with_another_number_of_tasks_adds_what_is_missing(valkey, valkey_url, stream):
    write, rows = Write(valkey_url, stream=stream), rows_of(range(9_000))
    write.run(rows[:3_000], rows[3_000:6_000], rows[6_000:], dies_after=2_500)
    assert 0 < valkey.xlen(stream) < 9_000

    write.run(rows[::2], rows[1::2])
    write.run(rows)

    assert numbers_in(valkey, stream) == list(range(9_000))


def test_a_run_with_another_number_of_tasks_adds_each_row_of_a_topic_once(valkey, valkey_url, topic):
    write, rows = Write(valkey_url, topic=topic.name), rows_of(range(3_000))
    write.run(rows[:1_000], rows[1_000:2_000], rows[2_000:], dies_after=800)

    Topics(valkey).grow(topic.name, 8)
    write.run(rows[::2], rows[1::2])

    assert numbers_in(valkey, *streams_of(topic)) == list(range(3_000))
    assert sum(valkey.xlen(one) for one in streams_of(Topics(valkey).open(topic.name))) == 3_000


@settings(max_examples=15)
@given(
    st.lists(st.integers(0, 20), max_size=60),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 60)), max_size=3),
    st.randoms(),
)
def test_however_rows_are_divided_each_is_added_once(valkey, valkey_url, numbers, runs, chance):
    write = Write(valkey_url, stream=f"test:{uuid.uuid4().hex}")
    rows = rows_of(numbers)
    for tasks, dies_after in runs:
        chance.shuffle(rows)
        write.run(*(rows[task::tasks] for task in range(tasks)), dies_after=dies_after)

    write.run(rows[::3], rows[1::3], rows[2::3])

    assert numbers_in(valkey, write.place["stream"]) == sorted(numbers)


def test_a_task_of_a_run_is_tried_again_after_rows_of_an_earlier_run_were_found(valkey, valkey_url, stream):
    write, rows = Write(valkey_url, stream=stream), rows_of([*range(1_000), *range(1_000)])
    write.run(rows, dies_after=700)
    run = write.begin()
    random.Random(1).shuffle(rows)

    with pytest.raises(DiedError):
        send(valkey_url, rows, write.attempt(run, 5), dies_after=1_500, stream=stream)
    send(valkey_url, rows, write.attempt(run, 5), stream=stream)
    write.commit(run)

    assert numbers_in(valkey, stream) == sorted([*range(1_000), *range(1_000)])


def test_a_task_of_an_earlier_run_adds_nothing_once_a_later_one_has_begun(valkey, valkey_url, stream):
    write, rows = Write(valkey_url, stream=stream), rows_of(range(100))
    earlier = write.begin()
    write.run(rows[:10])

    with pytest.raises(QueueError, match="STALERUN"):
        send(valkey_url, rows, write.attempt(earlier, 7), stream=stream)

    assert numbers_in(valkey, stream) == list(range(10))


def test_a_run_that_lacks_rows_of_an_earlier_one_is_refused_with_their_number(valkey_url, stream, topic):
    for place in ({"stream": stream}, {"topic": topic.name}):
        write = Write(valkey_url, **place)
        write.run(rows_of([*range(10)], partition=0))

        with pytest.raises(RowsDifferError, match="an earlier run of the write added 3 entries") as refused:
            write.run(rows_of([*range(4)], partition=0), rows_of([4, 5, 6, 100], partition=0))

        assert (refused.value.task, refused.value.extra) == (None, 3)


def test_what_is_kept_of_earlier_runs_ends_with_the_next_batch(valkey, valkey_url, stream):
    write, rows = Write(valkey_url, stream=stream), rows_of(range(100))
    write.run(rows, dies_after=50)
    write.run(rows[:50], rows[50:])

    write.batch = 1
    write.run(rows)

    assert numbers_in(valkey, stream) == sorted([*range(100)] * 2)
    [runs] = valkey.keys(f"*{stream}*spark*runs")
    assert valkey.hgetall(runs).keys() == {b"run", b"old", b"t:0"}
    assert all(valkey.pttl(key) > 0 for key in valkey.keys(f"*{stream}*spark*"))


def test_rows_with_one_id_and_no_key_go_to_one_partition_whatever_they_say(valkey, valkey_url, topic):
    rows = [
        {"data": json.dumps({"number": n, "at": at}), "order": f"o{n}"} for at in (1, 2) for n in range(50)
    ]

    send(valkey_url, rows, Attempt("w", 0, 0), topic=topic.name, dedupeColumn="order")

    homes: dict[int, set[str]] = {}
    for stream in streams_of(topic):
        for number in numbers_in(valkey, stream):
            homes.setdefault(number, set()).add(stream)
    assert len(homes) == 50
    assert {len(found) for found in homes.values()} == {1}
