"""Planning over large entries, and behind deleted ones, asks little of the server in each of its calls."""

from __future__ import annotations

import pytest

from conquiet import EmbeddedServer
from conquiet.queue import open_client
from conquiet.queue.backlog import as_mapping
from conquiet.queue.lua import LuaScript
from conquiet.spark.columns import SCHEMA
from conquiet.spark.entry_ids import EntryId, IdRange
from conquiet.spark.options import ReadOptions
from conquiet.spark.read.batch_reader import StreamBatchReader
from conquiet.spark.read.range_reader import read_range
from conquiet.spark.read.stream_reader import StreamMicroBatchReader
from conquiet.spark.scripts import sample, walk
from tests.services import Client
from tests.with_spark.server_side import add_orders, add_orders_evenly

MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def large():
    """A client of a server of its own, and the ids of 60 entries of a megabyte."""
    with EmbeddedServer() as server, open_client(server.url, protocol=2) as client:
        ids = [client.xadd("large", {"data": b"x" * MEGABYTE}) for _ in range(60)]
        yield client, [EntryId.parse(one) for one in ids]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One for each script that is run."""
    runs: list[int] = []
    run = LuaScript.run

    def recorded(script: LuaScript, *arguments: object) -> object:
        runs.append(1)
        return run(script, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(LuaScript, "run", recorded)
    return runs


def test_samples_of_large_entries_are_spread_over_calls_of_a_few_megabytes(large, calls):
    client, ids = large

    samples = sample(client, "large", ids, ids[-1], 64)

    assert samples == [(one, one, 1) for one in ids]
    assert len(calls) >= 60 / 6


def test_a_walk_over_large_entries_takes_a_few_megabytes_in_a_call(large, calls):
    client, ids = large
    first, walked = ids[0], 0

    while steps := walk(client, "large", IdRange(first, ids[-1]), 10, 500):
        assert sum(number for _, number in steps) <= 6
        walked += sum(number for _, number in steps)
        first = steps[-1][0].next()

    assert walked == 60
    assert len(calls) >= 60 / 6


def test_large_entries_behind_small_ones_take_little_of_the_servers_memory():
    with EmbeddedServer() as server, open_client(server.url, protocol=2) as client:
        ids = add_orders(client, "mixed", range(3_000))
        for _ in range(200):
            ids.append(client.xadd("mixed", {"data": b"x" * MEGABYTE}).decode())
        first, last = EntryId.parse(ids[0]), EntryId.parse(ids[-1])
        peak = memory_peak(client)

        [sampled] = sample(client, "mixed", [EntryId.parse(ids[2_990])], last, 64)
        walked, start = 0, first
        while steps := walk(client, "mixed", IdRange(start, last), 10, 500):
            walked += sum(number for _, number in steps)
            start = steps[-1][0].next()
        after_walk = memory_peak(client)
        read = sum(len(one) for one in read_range(client, "mixed", IdRange(first, last), fails_on_loss=True))

        assert sampled is not None
        assert (sampled[2] < 64, walked, read) == (True, 3_200, 3_200)
        # 16 entries for the scripts, for a reply 48 that are dropped half way.
        assert after_walk - peak < 40 * MEGABYTE
        assert memory_peak(client) - peak < 80 * MEGABYTE


def memory_peak(client: Client) -> int:
    peak: int = client.info("memory")["used_memory_peak"]
    return peak


def test_planning_behind_a_deleted_entry_walks_over_each_entry_about_once(valkey, valkey_url, stream, calls):
    ids = add_orders(valkey, stream, range(20_000))
    valkey.xdel(stream, ids[-2])
    options = {"url": valkey_url, "stream": stream, "start": "earliest", "maxOffsetsPerTrigger": "1000"}
    reader = StreamMicroBatchReader(ReadOptions.of(options), SCHEMA)
    offset, batches = reader.initialOffset(), 0

    while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        offset, batches = end, batches + 1

    assert batches == 20
    # A walk over all that is behind takes four calls for 20,000 entries: with each batch these were 40 more.
    assert len(calls) < 3 * batches
    [kept] = offset.values()
    assert kept["added"] == as_mapping(valkey.execute_command("XINFO", "STREAM", stream))["entries-added"]


def test_planning_walks_over_few_entries_though_some_are_deleted_ahead_of_each_batch(
    valkey, valkey_url, stream, calls
):
    ids = add_orders(valkey, stream, range(50_000))
    options = {"url": valkey_url, "stream": stream, "start": "earliest", "maxOffsetsPerTrigger": "500"}
    reader = StreamMicroBatchReader(ReadOptions.of(options), SCHEMA)
    offset, batches = reader.initialOffset(), 0

    while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        offset, batches = end, batches + 1
        valkey.xdel(stream, ids[-2 * batches])

    assert batches == 100
    # A count of all that is behind takes ten calls in the beginning: with each batch these were 500 more.
    assert len(calls) < 5 * batches
    valkey.xtrim(stream, minid=ids[-1], approximate=False)
    valkey.xadd(stream, {"data": "{}"})
    # What was read is trimmed: that is no loss.
    assert reader.latestOffset(offset, reader.getDefaultReadLimit()) != offset


def test_planning_up_to_where_an_available_now_query_ends_counts_nothing_that_came_later(
    valkey, valkey_url, stream, calls
):
    ids = add_orders(valkey, stream, range(20_000))
    valkey.xdel(stream, ids[-2])
    options = {"url": valkey_url, "stream": stream, "start": "earliest", "maxOffsetsPerTrigger": "1000"}
    reader = StreamMicroBatchReader(ReadOptions.of(options), SCHEMA)
    reader.prepareForTriggerAvailableNow()
    add_orders(valkey, stream, range(20_000, 20_100))
    offset, batches = reader.initialOffset(), 0

    while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        offset, batches = end, batches + 1

    assert batches == 20
    assert len(calls) < 3 * batches


def test_a_few_new_entries_of_a_long_stream_are_one_task(valkey, valkey_url, stream, calls):
    ids = add_orders(valkey, stream, range(5_000))
    options = {"url": valkey_url, "stream": stream, "start": ids[-50]}
    reader = StreamMicroBatchReader(ReadOptions.of(options), SCHEMA)
    start = reader.initialOffset()
    first = reader.latestOffset(start, reader.getDefaultReadLimit())
    add_orders(valkey, stream, range(5_000, 5_100))
    calls.clear()

    second = reader.latestOffset(first, reader.getDefaultReadLimit())

    assert (len(reader.partitions(start, first)), len(reader.partitions(first, second))) == (1, 1)
    assert len(calls) == 1


def test_a_narrow_part_of_a_long_stream_has_as_many_tasks_as_its_entries_need(valkey, valkey_url, stream):
    ids = add_orders_evenly(valkey, stream, 20_000)
    narrow = {
        "url": valkey_url,
        "stream": stream,
        "start": ids[10_000],
        "end": ids[10_999],
        "rowsPerSplit": "500",
    }

    def tasks(**more: str) -> int:
        return len(StreamBatchReader(ReadOptions.of(narrow | more), SCHEMA).partitions())

    assert 2 <= tasks() <= 8
    assert 6 <= tasks(minPartitions="8") <= 12
