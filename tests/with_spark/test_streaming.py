"""Streaming queries: offsets in Spark's checkpoint, each entry once, also over failures and restarts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from conquiet.errors import QueueError
from conquiet.mq import Message, Producer, Topics
from conquiet.spark.columns import SCHEMA
from conquiet.spark.errors import DataLossError
from conquiet.spark.options import ReadOptions
from conquiet.spark.read.stream_reader import StreamMicroBatchReader
from conquiet.spark.scripts import sample
from conquiet.spark.task_context import current_task
from tests.with_spark.server_side import add_orders, numbers_in, streams_of


@pytest.fixture
def run(spark, valkey_url, tmp_path):
    """Runs a query over all that is available, from where its checkpoint says, into a topic or stream."""

    def run_query(source: dict[str, object], sink: dict[str, object], change=None, name: str = "query"):
        texts = {option: str(value) for option, value in source.items()}
        df = spark.readStream.format("redis-stream").options(url=valkey_url, **texts).load().select("data")
        if change is not None:
            df = df.mapInArrow(change, df.schema)
        query = (
            df.writeStream.format("redis-stream")
            .options(url=valkey_url, checkpointLocation=str(tmp_path / name), **sink)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query

    return run_query


def test_a_query_copies_a_topic_in_bounded_batches_and_goes_on_after_a_restart(run, valkey, topic, stream):
    producer = Producer(valkey)
    source = {"topic": topic.name, "start": "earliest", "maxOffsetsPerTrigger": 300, "commitGroup": "spark"}
    producer.send_many(topic.name, [Message(payload={"number": n}, key=f"k{n}") for n in range(700)])

    first = run(source, {"stream": stream})
    producer.send_many(topic.name, [Message(payload={"number": n}, key=f"k{n}") for n in range(700, 800)])
    second = run(source, {"stream": stream})

    assert [progress.numInputRows for progress in first.recentProgress] == [300, 300, 100]
    assert [progress.numInputRows for progress in second.recentProgress] == [100]
    assert numbers_in(valkey, stream) == list(range(800))
    lags = [valkey.xinfo_groups(partition)[0]["lag"] for partition in streams_of(topic)]
    assert lags == [0, 0, 0]


def test_a_failed_batch_is_replayed_and_each_row_arrives_once(run, valkey, topic, stream, tmp_path):
    flag = tmp_path / "fails"
    flag.touch()
    for partition, name in enumerate(streams_of(topic)):
        add_orders(valkey, name, range(partition * 1_000, partition * 1_000 + 1_000))

    def fail_on_the_last_partition(batches):
        for batch in batches:
            yield batch
            if flag.exists() and json.loads(batch.column("data")[0].as_py())["number"] >= 2_000:
                raise RuntimeError("as if the machine had died")

    source, sink = {"topic": topic.name, "start": "earliest"}, {"stream": stream}
    with pytest.raises(PySparkException, match="as if the machine had died"):
        run(source, sink, fail_on_the_last_partition)
    assert valkey.xlen(stream) >= 1_000
    Path(flag).unlink()
    run(source, sink, fail_on_the_last_partition)

    assert numbers_in(valkey, stream) == list(range(3_000))


def test_rows_of_a_replayed_batch_that_is_divided_in_another_way_arrive_once(
    spark, valkey, valkey_url, topic, stream, tmp_path
):
    flag = tmp_path / "fails"
    flag.touch()
    for partition, name in enumerate(streams_of(topic)):
        add_orders(valkey, name, range(partition * 1_000, partition * 1_000 + 1_000))

    def fail_late(batches):
        yield from batches
        if flag.exists() and current_task().partitionId() == 2:
            raise RuntimeError("as if the machine had died")

    def run(parts: int) -> None:
        source = {"url": valkey_url, "topic": topic.name, "start": "earliest"}
        df = spark.readStream.format("redis-stream").options(**source).load().select("data")
        query = df.repartition(parts).mapInArrow(fail_late, df.schema).writeStream.format("redis-stream")
        query = query.options(url=valkey_url, stream=stream, checkpointLocation=str(tmp_path / "query"))
        query.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(PySparkException, match="as if the machine had died"):
        run(3)
    assert 0 < valkey.xlen(stream) < 6_000
    flag.unlink()
    run(5)

    assert numbers_in(valkey, stream) == list(range(3_000))


def test_a_first_batch_is_replayed_from_where_it_began_though_its_group_has_moved_on(
    run, valkey, stream, tmp_path
):
    flag, copies = tmp_path / "fails", f"{stream}-copies"
    flag.touch()
    add_orders(valkey, stream, range(10))
    [*_, last] = add_orders(valkey, stream, range(10, 30))
    valkey.xgroup_create(stream, "billing", id="0")

    def fail_once(batches):
        yield from batches
        if flag.exists():
            raise RuntimeError("as if the machine had died")

    source, sink = {"stream": stream, "start": "group:billing"}, {"stream": copies}
    with pytest.raises(PySparkException, match="as if the machine had died"):
        run(source, sink, fail_once)
    valkey.delete(copies)
    for key in valkey.keys(f"*{copies}*spark*"):
        valkey.delete(key)
    flag.unlink()
    valkey.xgroup_setid(stream, "billing", last)
    run(source, sink, fail_once)

    assert numbers_in(valkey, copies) == list(range(30))


def test_a_first_batch_is_replayed_though_its_group_was_deleted(valkey, valkey_url, stream):
    add_orders(valkey, stream, range(10))
    valkey.xgroup_create(stream, "billing", id="0")
    first = reader_of(valkey_url, stream, start="group:billing")
    end = first.latestOffset(first.initialOffset(), first.getDefaultReadLimit())
    valkey.xgroup_destroy(stream, "billing")

    again = reader_of(valkey_url, stream, start="group:billing")
    start = again.initialOffset()

    assert numbers_between(again, start, end) == list(range(10))
    with pytest.raises(QueueError, match="no such group"):
        again.latestOffset(start, again.getDefaultReadLimit())


def test_a_replayed_batch_is_divided_as_it_was(valkey, valkey_url, stream):
    add_orders(valkey, stream, range(5_000))
    options = ReadOptions.of(
        {"url": valkey_url, "stream": stream, "start": "earliest", "rowsPerSplit": "500"}
    )
    reader = StreamMicroBatchReader(options, SCHEMA)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    before = bounds(reader.partitions(start, end))
    add_orders(valkey, stream, range(50_000))

    after = bounds(StreamMicroBatchReader(options, SCHEMA).partitions(start, end))

    assert after == before
    assert len(before) >= 8


def bounds(splits: Iterable[Any]) -> list[tuple[str, str]]:
    return [(split.first, split.last) for split in splits]


def reader_of(url: str, stream: str, **options: object) -> StreamMicroBatchReader:
    texts = {name: str(value) for name, value in options.items()}
    return StreamMicroBatchReader(ReadOptions.of({"url": url, "stream": stream, **texts}), SCHEMA)


def numbers_between(reader: StreamMicroBatchReader, start, end) -> list[int]:
    return [
        json.loads(text)["number"]
        for split in reader.partitions(start, end)
        for batch in reader.read(split)
        for text in batch.column("data").to_pylist()
    ]


def numbers_from(reader: StreamMicroBatchReader) -> list[int]:
    start = reader.initialOffset()
    return numbers_between(reader, start, reader.latestOffset(start, reader.getDefaultReadLimit()))


def test_a_query_starts_at_the_earliest_the_latest_an_id_a_time_or_a_groups_position(
    valkey, valkey_url, stream
):
    for number in range(5):
        valkey.xadd(stream, {"data": json.dumps({"number": number})}, id=f"{1_700_000_000_000 + number}-0")
    valkey.xgroup_create(stream, "billing", "1700000000001-0")

    assert numbers_from(reader_of(valkey_url, stream, start="earliest")) == [0, 1, 2, 3, 4]
    assert numbers_from(reader_of(valkey_url, stream)) == []
    assert numbers_from(reader_of(valkey_url, stream, start="1700000000003-0")) == [3, 4]
    assert numbers_from(reader_of(valkey_url, stream, start="2023-11-14T22:13:20.002Z")) == [2, 3, 4]
    assert numbers_from(reader_of(valkey_url, stream, start="group:billing")) == [2, 3, 4]
    with pytest.raises(Exception, match="no such group"):
        numbers_from(reader_of(valkey_url, stream, start="group:nobody"))


def test_a_query_touches_no_group(valkey, valkey_url, stream):
    add_orders(valkey, stream, range(10))
    valkey.xgroup_create(stream, "billing", "0-0")

    numbers_from(reader_of(valkey_url, stream, start="earliest"))

    [group] = valkey.xinfo_groups(stream)
    assert (group["lag"], group["pending"], group["last-delivered-id"]) == (10, 0, b"0-0")


def test_a_mirrored_group_is_never_moved_back(valkey, valkey_url, stream):
    ids = add_orders(valkey, stream, range(10))
    reader = reader_of(valkey_url, stream, start="earliest", commitGroup="spark")
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    reader.commit(end)

    reader.commit(reader.initialOffset())

    [group] = valkey.xinfo_groups(stream)
    assert (group["lag"], group["last-delivered-id"]) == (0, ids[-1].encode())


def test_entries_trimmed_before_they_were_read_are_reported_with_the_gap(valkey, valkey_url, stream):
    ids = add_orders(valkey, stream, range(100))
    reader = reader_of(valkey_url, stream, start="earliest")
    read = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    later = add_orders(valkey, stream, range(100, 200))
    valkey.xtrim(stream, minid=later[30], approximate=False)

    with pytest.raises(Exception, match="were trimmed or deleted") as lost:
        reader.latestOffset(read, reader.getDefaultReadLimit())

    gap: Any = lost.value
    assert (gap.after, gap.before, gap.at_most) == (ids[-1], later[30], 30)
    careless = reader_of(valkey_url, stream, start="earliest", failOnDataLoss="false")
    end = careless.latestOffset(read, careless.getDefaultReadLimit())
    assert numbers_between(careless, read, end) == list(range(130, 200))


def test_trimming_what_was_read_loses_nothing(valkey, valkey_url, stream):
    add_orders(valkey, stream, range(100))
    reader = reader_of(valkey_url, stream, start="earliest", maxOffsetsPerTrigger=60)
    first = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    second = reader.latestOffset(first, reader.getDefaultReadLimit())
    later = add_orders(valkey, stream, range(100, 110))
    valkey.xtrim(stream, minid=later[0], approximate=False)

    third = reader.latestOffset(second, reader.getDefaultReadLimit())

    assert numbers_between(reader, second, third) == list(range(100, 110))


def test_a_limit_is_shared_by_the_partitions_and_nothing_is_left_behind(valkey, valkey_url, topic):
    for partition, (stream, count) in enumerate(zip(streams_of(topic), (5, 100, 1_000), strict=True)):
        add_orders(valkey, stream, range(partition * 10_000, partition * 10_000 + count))
    options = {"url": valkey_url, "topic": topic.name, "start": "earliest", "maxOffsetsPerTrigger": "300"}
    reader = StreamMicroBatchReader(ReadOptions.of(options), SCHEMA)
    offset, found, sizes = reader.initialOffset(), [], []

    while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        numbers = numbers_between(reader, offset, end)
        sizes.append(len(numbers))
        found += numbers
        offset = end

    assert sizes == [300, 300, 300, 205]
    assert sorted(found) == [*range(5), *range(10_000, 10_100), *range(20_000, 21_000)]


def test_a_stream_with_little_that_is_new_leaves_its_share_to_others_however_long_it_is(
    valkey, valkey_url, stream
):
    long, short = f"{stream}:long", f"{stream}:short"
    ids = add_orders(valkey, long, range(5_000))
    add_orders(valkey, short, range(5_000, 5_500))
    start = json.dumps({long: ids[-10], short: "earliest"})
    options = {"url": valkey_url, "streams": f"{long},{short}", "start": start, "maxOffsetsPerTrigger": "300"}
    reader = StreamMicroBatchReader(ReadOptions.of(options), SCHEMA)
    begin = reader.initialOffset()
    # From an id on nothing is counted before the first batch.
    first = end_of_batch(reader, begin)
    add_orders(valkey, long, range(5_500, 5_510))

    second = end_of_batch(reader, first)

    assert len(numbers_between(reader, first, second)) == 10 + 290


def test_a_partition_that_a_topic_grows_by_is_read_from_its_beginning(valkey, valkey_url, topic):
    options = {"url": valkey_url, "topic": topic.name, "start": "latest"}
    reader = StreamMicroBatchReader(ReadOptions.of(options), SCHEMA)
    start = reader.initialOffset()
    grown = Topics(valkey).grow(topic.name, 4)
    add_orders(valkey, grown.keys.stream(3), range(10))

    end = reader.latestOffset(start, reader.getDefaultReadLimit())

    assert numbers_between(reader, start, end) == list(range(10))


def test_available_now_ends_where_the_stream_ended_when_it_began(valkey, valkey_url, stream):
    add_orders(valkey, stream, range(10))
    reader = reader_of(valkey_url, stream, start="earliest")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    add_orders(valkey, stream, range(10, 20))

    end = reader.latestOffset(start, reader.getDefaultReadLimit())

    assert numbers_between(reader, start, end) == list(range(10))
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end


def end_of_batch(reader: StreamMicroBatchReader, start):
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def test_a_gap_behind_an_available_now_query_is_noticed_though_others_went_on_adding(
    valkey, valkey_url, stream
):
    ids = add_orders(valkey, stream, range(10))
    reader = reader_of(valkey_url, stream, start="earliest")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    add_orders(valkey, stream, range(10, 20))
    end = end_of_batch(reader, start)
    later = add_orders(valkey, stream, range(20, 30))
    valkey.xtrim(stream, minid=later[0], approximate=False)

    with pytest.raises(DataLossError) as lost:
        end_of_batch(reader_of(valkey_url, stream, start="earliest"), end)

    gap: Any = lost.value
    assert (gap.after, gap.before, gap.at_most) == (ids[-1], later[0], 10)


def test_a_gap_is_noticed_in_bounded_batches_that_began_at_an_id(valkey, valkey_url, stream):
    ids = add_orders(valkey, stream, range(12_000))
    reader = reader_of(valkey_url, stream, start=ids[100], maxOffsetsPerTrigger=50)
    end = end_of_batch(reader, reader.initialOffset())
    valkey.xtrim(stream, minid=ids[160], approximate=False)

    with pytest.raises(DataLossError) as lost:
        end_of_batch(reader, end)

    gap: Any = lost.value
    assert (gap.after, gap.before, gap.at_most) == (ids[149], ids[160], 10)


def test_trimming_what_was_read_from_an_id_on_loses_nothing(valkey, valkey_url, stream):
    ids = add_orders(valkey, stream, range(200))
    reader = reader_of(valkey_url, stream, start=ids[100], maxOffsetsPerTrigger=50)
    first = end_of_batch(reader, reader.initialOffset())
    valkey.xtrim(stream, minid=ids[150], approximate=False)

    second = end_of_batch(reader, first)

    assert numbers_between(reader, first, second) == list(range(150, 200))


def test_a_gap_behind_a_groups_position_is_noticed_though_the_group_does_not_count(
    valkey, valkey_url, stream
):
    ids = add_orders(valkey, stream, range(20))
    valkey.xgroup_create(stream, "billing", ids[4])
    reader = reader_of(valkey_url, stream, start="group:billing")
    start = reader.initialOffset()
    valkey.xtrim(stream, minid=ids[8], approximate=False)

    with pytest.raises(DataLossError, match="may have been trimmed") as lost:
        end_of_batch(reader, start)

    assert (lost.value.after, lost.value.before) == (ids[4], ids[8])


def test_a_groups_position_that_trimming_has_passed_is_reported_as_a_possible_loss(
    valkey, valkey_url, stream
):
    ids = add_orders(valkey, stream, range(20))
    valkey.xgroup_create(stream, "billing", ids[4])
    valkey.xtrim(stream, minid=ids[8], approximate=False)
    reader = reader_of(valkey_url, stream, start="group:billing")

    with pytest.raises(DataLossError, match="may have been trimmed") as lost:
        end_of_batch(reader, reader.initialOffset())

    assert (lost.value.after, lost.value.before) == (ids[4], ids[8])


def test_single_entries_deleted_from_bounded_batches_are_no_gap_later(valkey, valkey_url, stream):
    ids = add_orders(valkey, stream, range(100))
    reader = reader_of(valkey_url, stream, start="earliest", maxOffsetsPerTrigger=40)
    first = end_of_batch(reader, reader.initialOffset())
    valkey.xdel(stream, ids[50], ids[60])
    second = end_of_batch(reader, first)
    valkey.xtrim(stream, minid=ids[82], approximate=False)

    third = end_of_batch(reader, second)

    assert numbers_between(reader, second, third) == list(range(82, 100))


def test_a_start_that_is_still_to_come_is_not_a_loss(valkey, valkey_url, stream):
    add_orders(valkey, stream, range(10))
    reader = reader_of(valkey_url, stream, start="2100-01-01T00:00:00Z")
    start = reader.initialOffset()
    valkey.xtrim(stream, maxlen=0, approximate=False)

    assert end_of_batch(reader, start) == start


@pytest.mark.parametrize("again", [0, 5, 50], ids=["not made again", "shorter", "longer"])
def test_a_stream_that_was_deleted_and_made_again_is_reported(valkey, valkey_url, stream, again):
    ids = add_orders(valkey, stream, range(20))
    reader = reader_of(valkey_url, stream, start="earliest")
    end = end_of_batch(reader, reader.initialOffset())
    valkey.delete(stream)
    add_orders(valkey, stream, range(again))

    with pytest.raises(DataLossError, match="the stream was deleted") as lost:
        end_of_batch(reader, end)

    assert lost.value.after == ids[-1]


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": 50}], ids=["all", "bounded"])
def test_entries_trimmed_while_a_batch_is_planned_are_reported(
    valkey, valkey_url, stream, monkeypatch, limit
):
    ids = add_orders(valkey, stream, range(100))
    reader = reader_of(valkey_url, stream, start="earliest", **limit)
    start = reader.initialOffset()

    def trim_and_sample(*arguments):
        valkey.xtrim(stream, minid=ids[10], approximate=False)
        return sample(*arguments)

    for module in ("splits", "progress"):
        monkeypatch.setattr(f"conquiet.spark.read.{module}.sample", trim_and_sample)

    with pytest.raises(DataLossError) as lost:
        end_of_batch(reader, start)

    assert (lost.value.before, lost.value.at_most) == (ids[10], 10)
