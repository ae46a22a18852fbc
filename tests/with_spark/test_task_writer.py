"""Attempts of one task: each row is added once, however often and in whatever order it is sent."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import uuid
from contextlib import contextmanager

import pyarrow as pa
import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StringType, StructField, StructType

from conquiet.errors import NotReplicatedError, QueueError, TopicError
from conquiet.mq import HashPartitioner, Message, Producer, Topics
from conquiet.payload import decode_payload
from conquiet.queue.connection import key_beside
from conquiet.spark.errors import RowsDifferError
from conquiet.spark.options import WriteOptions
from conquiet.spark.outages import Patience
from conquiet.spark.task_context import Attempt
from conquiet.spark.wire.envelope_encoder import EnvelopeEncoder
from conquiet.spark.wire.texts import check_objects
from conquiet.spark.write.targets import payloads_of
from conquiet.spark.write.task_writer import TaskPartitions, TaskWriter, open_target
from conquiet.spark.write.writers import StreamBatchWriter, WrittenRows
from tests.eventually import eventually
from tests.with_redis.test_replicas import primary_and_replica
from tests.with_spark.server_side import envelopes_in, numbers_in, streams_of

DATA = StructType([StructField("data", StringType())])


class DiedError(Exception):
    """The attempt dies here."""


def attempt_of(write_id: str | None = None, batch: int = 0, task: int = 0) -> Attempt:
    return Attempt(write_id or uuid.uuid4().hex, batch, task)


def send(url, rows, attempt, *, dies_after=None, size=100, **place) -> None:
    """One attempt: batches of `size` rows; dies before it has sent all of them with `dies_after`."""
    options = WriteOptions.of({"url": url, **place})
    with task_writer(options, attempt) as writer:
        for first in range(0, len(rows), size):
            if dies_after is not None and first >= dies_after:
                raise DiedError
            some = rows[first : first + size]
            columns = {name: [row[name] for row in some] for name in some[0]}
            writer.add(pa.RecordBatch.from_pydict(columns))
        writer.finish()


@contextmanager
def task_writer(options, attempt):
    with (
        options.address.connect() as client,
        TaskWriter(
            client, open_target(client, options), options, attempt, Patience(options.retry_timeout_ms)
        ) as writer,
    ):
        yield writer


def rows_of(numbers, **more) -> list[dict[str, object]]:
    return [{"data": json.dumps({"number": number}), **more} for number in numbers]


def test_a_server_that_lets_the_user_run_no_script_is_a_queue_error(valkey, valkey_url, stream):
    user, rights = f"user-{uuid.uuid4().hex}", ("on", ">secret", "~*", "+@all", "-eval")
    valkey.execute_command("ACL", "SETUSER", user, *rights)
    url = valkey_url.replace("redis://", f"redis://{user}:secret@")

    try:
        with pytest.raises(QueueError, match="EVAL"):
            send(url, rows_of(range(3)), attempt_of(), stream=stream)
    finally:
        valkey.execute_command("ACL", "DELUSER", user)

    assert valkey.xlen(stream) == 0


def test_an_attempt_goes_on_where_the_last_one_died(valkey, valkey_url, stream):
    attempt, rows = attempt_of(), rows_of(range(2_000))
    with pytest.raises(DiedError):
        send(valkey_url, rows, attempt, dies_after=700, stream=stream)
    assert 0 < valkey.xlen(stream) < 2_000

    send(valkey_url, rows, attempt, stream=stream)

    assert numbers_in(valkey, stream) == list(range(2_000))


def test_an_attempt_with_the_rows_in_another_order_adds_each_once(valkey, valkey_url, stream):
    attempt, rows = attempt_of(), rows_of([*range(1_500), *range(500)])
    with pytest.raises(DiedError):
        send(valkey_url, rows, attempt, dies_after=1_100, stream=stream)

    random.Random(1).shuffle(rows)
    send(valkey_url, rows, attempt, stream=stream, size=333)

    assert numbers_in(valkey, stream) == sorted([*range(1_500), *range(500)])


@settings(max_examples=15)
@given(st.lists(st.integers(0, 30), max_size=60), st.lists(st.integers(0, 60), max_size=3), st.randoms())
def test_however_often_a_task_is_tried_each_row_is_added_once(valkey, valkey_url, numbers, deaths, chance):
    stream, attempt = f"test:{uuid.uuid4().hex}", attempt_of()
    rows = rows_of(numbers)
    for dies_after in deaths:
        chance.shuffle(rows)
        try:
            send(valkey_url, rows, attempt, dies_after=dies_after, size=7, stream=stream)
        except DiedError:
            continue

    send(valkey_url, rows, attempt, size=5, stream=stream)

    assert numbers_in(valkey, stream) == sorted(numbers)


def test_attempts_that_run_at_the_same_time_add_each_row_once(valkey, valkey_url, topic):
    attempt = attempt_of()
    errors = []

    def run(seed: int) -> None:
        rows = rows_of(range(3_000))
        random.Random(seed).shuffle(rows)
        try:
            send(valkey_url, rows, attempt, size=50, topic=topic.name)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not errors
    assert numbers_in(valkey, *streams_of(topic)) == list(range(3_000))


def test_an_attempt_that_has_other_rows_is_refused_with_their_number(valkey_url, stream):
    attempt = attempt_of()
    send(valkey_url, rows_of(range(10)), attempt, stream=stream)

    with pytest.raises(RowsDifferError, match="task 0 added 3 entries") as refused:
        send(valkey_url, rows_of([*range(7), 100]), attempt, stream=stream)

    assert refused.value.extra == 3


def test_other_tasks_batches_and_writes_have_rows_of_their_own(valkey, valkey_url, stream):
    rows = rows_of([1])
    for attempt in (
        attempt_of("w", 0, 0),
        attempt_of("w", 0, 1),
        attempt_of("v", 0, 0),
        attempt_of("w", 1, 0),
    ):
        send(valkey_url, rows, attempt, stream=stream)

    assert numbers_in(valkey, stream) == [1, 1, 1, 1]


def test_a_replayed_batch_adds_nothing(valkey, valkey_url, stream):
    rows = rows_of(range(100))
    for batch in (0, 1, 1, 1):
        send(valkey_url, rows, attempt_of("query", batch), stream=stream)

    assert valkey.xlen(stream) == 200


def test_a_straggler_of_an_earlier_batch_is_refused(valkey, valkey_url, stream):
    send(valkey_url, rows_of([1]), attempt_of("query", 5), stream=stream)

    with pytest.raises(QueueError, match="STALEBATCH"):
        send(valkey_url, rows_of([2]), attempt_of("query", 4), stream=stream)

    assert numbers_in(valkey, stream) == [1]


def test_an_attempt_that_outlives_its_write_is_refused(valkey, valkey_url, stream):
    attempt = attempt_of()
    send(valkey_url, rows_of([1]), attempt, stream=stream)
    [key] = valkey.keys(f"*{stream}*spark*")
    StreamBatchWriter(WriteOptions.of({"url": valkey_url, "stream": stream}), DATA).commit(
        [WrittenRows(1, attempt.write_id, None, [key.decode()])]
    )

    with pytest.raises(QueueError, match="STALEBATCH"):
        send(valkey_url, rows_of([1]), attempt, stream=stream)

    assert numbers_in(valkey, stream) == [1]


def test_what_a_query_keeps_for_replays_does_not_grow_with_its_batches(valkey, valkey_url, stream):
    for batch in range(5):
        send(valkey_url, rows_of(range(100)), attempt_of("query", batch), stream=stream)

    [key] = valkey.keys(f"*{stream}*spark*")
    assert valkey.strlen(key) == 36 + 8 * 100
    assert 0 < valkey.pttl(key) <= 24 * 3_600_000


def test_a_server_that_forgot_the_script_gets_it_again(valkey, valkey_url, stream):
    options = WriteOptions.of({"url": valkey_url, "stream": stream})
    with task_writer(options, attempt_of()) as writer:
        for numbers in (range(10), range(10, 20)):
            writer.add(pa.RecordBatch.from_pydict({"data": [row["data"] for row in rows_of(numbers)]}))
            valkey.script_flush()
        writer.finish()

    assert numbers_in(valkey, stream) == list(range(20))


def test_a_plain_write_adds_everything_again(valkey, valkey_url, stream):
    for _ in range(2):
        send(valkey_url, rows_of(range(1_200)), attempt_of("w"), stream=stream, dedupe="off")

    assert valkey.xlen(stream) == 2_400


def test_a_dedupe_column_counts_across_writes_and_producers(valkey, valkey_url, topic):
    producer = Producer(valkey)
    producer.send(topic.name, {"number": 1}, key="a", dedupe_id="order-1")
    rows = [
        {"data": json.dumps({"number": number}), "key": "a", "order": f"order-{number}"}
        for number in (1, 2, 2, 3)
    ]

    for _ in range(2):
        send(valkey_url, rows, attempt_of(), topic=topic.name, dedupeColumn="order")
    producer.send(topic.name, {"number": 3}, key="a", dedupe_id="order-3")

    assert numbers_in(valkey, *streams_of(topic)) == [1, 2, 3]


def test_keys_go_where_the_producer_sends_them(valkey, valkey_url, topic):
    keys = [f"customer-{number}" for number in range(200)] + ["ü", ""]
    rows = [{"data": json.dumps({"number": n}), "key": key} for n, key in enumerate(keys)]
    send(valkey_url, rows, attempt_of(), topic=topic.name)
    Producer(valkey).send_many(topic.name, [Message(payload={"number": 0}, key=key) for key in keys])

    places: dict[str, set[int]] = {}
    for envelope in envelopes_in(valkey, topic):
        places.setdefault(envelope["key"], set()).add(envelope["partitionId"])

    partition_for = HashPartitioner().partition_for
    assert places == {key: {partition_for(key, 3)} for key in keys}


def test_rows_of_one_partition_keep_their_order(valkey, valkey_url, topic):
    rows = [{"data": json.dumps({"number": n}), "key": f"k{n % 7}"} for n in range(3_000)]

    send(valkey_url, rows, attempt_of(), topic=topic.name, size=1_000)

    for stream in streams_of(topic):
        found = [json.loads(fields[b"data"])["payload"]["number"] for _, fields in valkey.xrange(stream)]
        assert found == sorted(found)


def test_a_given_partition_wins_over_the_key(valkey, valkey_url, topic):
    rows = rows_of([1, 2], key="a", partition=2)

    send(valkey_url, rows, attempt_of(), topic=topic.name)

    assert numbers_in(valkey, topic.keys.stream(2)) == [1, 2]
    with pytest.raises(TopicError, match="has no partition 3"):
        send(valkey_url, rows_of([1], partition=3), attempt_of(), topic=topic.name)


@pytest.mark.parametrize("data", [None, "", "[1]", "text", '"{}"'])
def test_what_is_not_a_json_object_is_not_written(valkey, valkey_url, stream, data):
    with pytest.raises(ValueError, match="data must be a JSON object"):
        send(valkey_url, [{"data": "{}"}, {"data": data}], attempt_of(), stream=stream)

    assert valkey.xlen(stream) == 0


@pytest.mark.parametrize(
    "data",
    [
        '{"a":1},"forGroup":"other","payload":{"b":2}',
        '{"a":"{"},"headers":{"x":"}"}',
        '{"a":{}}\n{"b":{}}',
        '{"a":"\\"},"b":{"c":"d"}}}',
    ],
)
def test_a_text_that_would_add_members_to_its_envelope_is_not_written(valkey, valkey_url, topic, data):
    with pytest.raises(ValueError, match=r"data must be a JSON object, got '\{\"a\"") as refused:
        send(valkey_url, [{"data": '{"n":{}}'}, {"data": data}], attempt_of(), topic=topic.name)

    assert refused.value.__cause__ is not None
    assert [valkey.xlen(stream) for stream in streams_of(topic)] == [0, 0, 0]


@settings(max_examples=30)
@given(st.lists(st.recursive(st.text(), lambda inner: st.dictionaries(st.text(), inner), max_leaves=8)))
def test_every_json_object_is_written_as_it_is(valkey, valkey_url, topic, values):
    rows = [
        {"data": json.dumps({"value": value}, indent=index % 2 or None)} for index, value in enumerate(values)
    ]
    written = {stream: valkey.xlen(stream) for stream in streams_of(topic)}

    send(valkey_url, rows, attempt_of(), topic=topic.name)

    added = [
        json.dumps(json.loads(fields[b"data"])["payload"]["value"])
        for stream, count in written.items()
        for _, fields in valkey.xrange(stream)[count:]
    ]
    assert sorted(added) == sorted(json.dumps(value) for value in values)


def test_rows_of_any_size_are_added(valkey, valkey_url, stream):
    texts = ["x" * size for size in (0, 1, 9, 10, 99, 100, 70_000, 3_000_000)]
    rows = [{"data": json.dumps({"text": text})} for text in texts]

    send(valkey_url, rows, attempt_of(), stream=stream)

    assert [json.loads(fields[b"data"])["text"] for _, fields in valkey.xrange(stream)] == texts


def test_an_error_of_the_server_names_the_stream(valkey, valkey_url, stream):
    valkey.set(stream, "no stream")

    for dedupe in ("rows", "off"):
        with pytest.raises(QueueError, match=f"{stream}.*WRONGTYPE"):
            send(valkey_url, rows_of([1]), attempt_of(), stream=stream, dedupe=dedupe)


def test_an_unavailable_server_is_a_visible_error(free_url, stream):
    with pytest.raises(QueueError, match="refused"):
        send(free_url, rows_of([1]), attempt_of(), stream=stream, retryTimeoutMs="0")


def test_an_attempt_without_rows_is_refused_if_another_had_some(valkey_url, stream, topic):
    for place in ({"stream": stream}, {"topic": topic.name}):
        attempt = attempt_of()
        send(valkey_url, rows_of(range(10)), attempt, **place)

        with pytest.raises(RowsDifferError):
            send(valkey_url, [], attempt, **place)


def test_an_attempt_whose_other_rows_belong_into_other_partitions_is_refused(valkey, valkey_url, topic):
    attempt = attempt_of()
    send(valkey_url, rows_of([1], partition=0), attempt, topic=topic.name)

    with pytest.raises(RowsDifferError, match="added 1 entries") as refused:
        send(valkey_url, rows_of([2], partition=1), attempt, topic=topic.name)

    assert refused.value.stream == topic.keys.stream(0)


@pytest.mark.parametrize("record", ["4;,0,", "{}", "4:0:1"])
def test_a_record_of_another_version_is_a_queue_error_and_nothing_is_added(valkey, valkey_url, topic, record):
    attempt = attempt_of()
    streams = [topic.keys.stream(partition) for partition in topic.partitions]
    key = key_beside(streams[0], f"spark:{attempt.write_id}:{attempt.task}:partitions")
    valkey.set(key, f"{attempt.batch:020}{record}")

    with pytest.raises(QueueError, match="is of another version of conquiet"):
        send(valkey_url, rows_of(range(5)), attempt, topic=topic.name)

    assert sum(valkey.xlen(stream) for stream in streams) == 0


def test_an_attempt_after_the_topic_has_grown_adds_each_row_once(valkey, valkey_url, topic):
    attempt = attempt_of()
    rows = [{"data": json.dumps({"number": n}), "key": None if n % 2 else f"k{n}"} for n in range(200)]
    with pytest.raises(DiedError):
        send(valkey_url, rows, attempt, topic=topic.name, size=50, dies_after=100)
    grown = Topics(valkey).grow(topic.name, 8)

    send(valkey_url, rows, attempt, topic=topic.name)
    send(valkey_url, rows, attempt_of(), topic=topic.name)

    old, new = streams_of(grown)[:3], streams_of(grown)[3:]
    assert numbers_in(valkey, *old, *new) == sorted([*range(200)] * 2)
    assert numbers_in(valkey, *new)


def test_an_attempt_that_saw_fewer_partitions_than_the_one_before_adds_nothing(valkey, valkey_url, topic):
    attempt, options = attempt_of(), WriteOptions.of({"url": valkey_url, "topic": topic.name})
    rows = rows_of(range(50))
    with task_writer(options, attempt) as writer:
        grown = Topics(valkey).grow(topic.name, 8)
        send(valkey_url, rows, attempt, topic=topic.name)

        with pytest.raises(TopicError, match="has grown to 8 partitions"):
            writer.add(pa.RecordBatch.from_pydict({"data": [row["data"] for row in rows]}))

    assert numbers_in(valkey, *streams_of(grown)) == list(range(50))


def test_an_attempt_that_another_overtakes_in_a_grown_topic_adds_nothing(
    valkey, valkey_url, topic, monkeypatch
):
    attempt, rows, count = attempt_of(), rows_of(range(50)), TaskPartitions.count

    def count_and_be_overtaken(record):
        found = count(record)
        monkeypatch.undo()
        Topics(valkey).grow(topic.name, 8)
        send(valkey_url, rows, attempt, topic=topic.name)
        return found

    monkeypatch.setattr(TaskPartitions, "count", count_and_be_overtaken)

    with pytest.raises(QueueError, match="spreads rows over 8 partitions, this one over 3"):
        send(valkey_url, rows, attempt, topic=topic.name)

    assert numbers_in(valkey, *streams_of(Topics(valkey).open(topic.name))) == list(range(50))


def test_a_task_that_never_had_rows_leaves_no_key(valkey, valkey_url, stream, topic):
    for place in ({"stream": stream}, {"topic": topic.name}):
        send(valkey_url, [], attempt_of(), **place)

    assert valkey.keys(f"*{stream}*spark*") + valkey.keys(f"*{topic.name}*spark*") == []


def test_a_task_whose_rows_no_replica_has_fails_and_its_next_attempt_adds_none_again(
    valkey, valkey_url, stream
):
    attempt = attempt_of()
    for _ in range(2):
        with pytest.raises(NotReplicatedError, match="0 of min_replicas=1 replicas have them"):
            send(
                valkey_url,
                rows_of(range(300)),
                attempt,
                stream=stream,
                minReplicas="1",
                replicaTimeoutMs="50",
            )

    assert numbers_in(valkey, stream) == list(range(300))


@pytest.mark.parametrize("place", [{}, {"dedupeColumn": "id"}])
def test_an_attempt_that_finds_all_rows_waits_until_replicas_have_them_too(stream, place):
    attempt, rows = (
        attempt_of(),
        [row | {"id": str(number)} for number, row in enumerate(rows_of(range(300)))],
    )
    place |= {"stream": stream, "minReplicas": "1", "replicaTimeoutMs": "200"}
    with primary_and_replica() as (primary, replica), redis.Redis.from_url(primary.url) as client:
        pid = redis.Redis.from_url(replica.url).info("server")["process_id"]
        os.kill(pid, signal.SIGSTOP)
        try:
            for _ in range(3):
                with pytest.raises(NotReplicatedError, match="0 of min_replicas=1 replicas have them"):
                    send(primary.url, rows, attempt, **place)
        finally:
            os.kill(pid, signal.SIGCONT)

        send(primary.url, rows, attempt, **place | {"replicaTimeoutMs": "60000"})
        with redis.Redis.from_url(replica.url) as copy:
            assert copy.xlen(stream) == client.xlen(stream) == 300


def test_a_server_that_was_a_replica_meanwhile_may_have_lost_rows(stream):
    place = {"stream": stream, "minReplicas": "1", "replicaTimeoutMs": "60000"}
    with primary_and_replica() as (primary, replica), redis.Redis.from_url(primary.url) as client:
        options = WriteOptions.of({"url": primary.url, **place})
        with task_writer(options, attempt_of()) as writer:
            data = [row["data"] for row in rows_of(range(300))]
            writer.add(pa.RecordBatch.from_pydict({"data": data}))
            client.replicaof("127.0.0.1", str(replica.port))
            client.replicaof("NO", "ONE")
            eventually(lambda: client.info("replication").get("slave0", {}).get("state") == "online")

            with pytest.raises(NotReplicatedError, match="0 of min_replicas=1 replicas have them"):
                writer.finish()


PIECES = [
    "{",
    "}",
    '"a"',
    ":",
    "1",
    ",",
    "[",
    "]",
    '"',
    "\\",
    "\n",
    " ",
    '"key":"x"',
    '{"a":1}',
    '"payload":{"b":2}',
]
PIECES += ['"forGroup":"g"', "NaN", "-Infinity", "\x00", "\u00e9", '{"b":"', "\\ud800", "1e999", "/*", "*/"]


@settings(max_examples=300)
@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), min_size=1, max_size=3))
def test_no_text_adds_members_to_its_envelope(bodies):
    batch = pa.RecordBatch.from_pydict({"data": [f"{{{body}}}" for body in bodies]})
    try:
        data = payloads_of(batch)
    except ValueError:
        return

    keys, headers = pa.repeat(pa.scalar("null"), len(data)), pa.repeat(pa.scalar("{}"), len(data))
    for text, entry in zip(
        data.to_pylist(), EnvelopeEncoder("t", 0).encode(data, keys, headers), strict=True
    ):
        envelope = decode_payload(entry.as_py().encode())
        assert envelope["payload"] == decode_payload(text.encode())
        assert (envelope["key"], envelope["headers"], envelope["forGroup"]) == (None, {}, None)


@pytest.mark.parametrize(
    "text", ['{"a":1', '{"a":}', "{a}", '{"a":"}', '{"a":NaN}', '{"a":1},"key":"b","c":{}', "[]"]
)
def test_a_text_that_is_no_object_is_refused_and_nothing_is_added(valkey, valkey_url, stream, topic, text):
    for place in ({"stream": stream}, {"topic": topic.name}):
        with pytest.raises(ValueError, match="data must be a JSON object"):
            send(valkey_url, [{"data": '{"a":1}'}, {"data": text}], attempt_of(), **place)

    assert sum(valkey.xlen(one) for one in (stream, *streams_of(topic))) == 0


@pytest.mark.parametrize(
    "texts",
    [
        ["{}\0}"],
        ['{"a":1}\0{"b":2}'],
        ["{}", "{}{}\0}", '{"a":1},"key":"x","payload":{"b":2}'],
        ["{}", "{}{}  }", '{"a":1},"key":"x","payload":{"b":2}'],
        ['{"a":1}\n{"b":2}', '{"a":1},"key":"x","payload":{"b":2}'],
    ],
)
def test_objects_that_make_up_for_one_that_is_none_are_refused(texts):
    with pytest.raises(ValueError, match="data must be a JSON object"):
        check_objects(pa.array(texts))


def test_white_space_around_an_object_is_left_out(valkey, valkey_url, stream, topic):
    rows = [{"data": ' {"number": 1}\n'}, {"data": '{"number": 2}'}, {"data": '\t{"number":\n3}\r\n'}]

    for place in ({"stream": stream}, {"topic": topic.name}):
        send(valkey_url, rows, attempt_of(), **place)

    assert numbers_in(valkey, stream) == numbers_in(valkey, *streams_of(topic)) == [1, 2, 3]
    assert all(fields[b"data"].startswith(b'{"number"') for _, fields in valkey.xrange(stream))


@pytest.mark.parametrize("column", ["data", "key"])
def test_bytes_that_are_not_utf8_are_refused_though_spark_calls_them_text(valkey, valkey_url, topic, column):
    options = WriteOptions.of({"url": valkey_url, "topic": topic.name})
    columns = {"data": pa.array([b'{"a":"b"}']), "key": pa.array([b"k"])}
    columns[column] = pa.array([b'{"a":"\xff"}'])
    batch = pa.RecordBatch.from_pydict({name: array.view(pa.string()) for name, array in columns.items()})

    with (
        task_writer(options, attempt_of()) as writer,
        pytest.raises(ValueError, match=f"{column} must be UTF-8"),
    ):
        writer.add(batch)

    assert sum(valkey.xlen(stream) for stream in streams_of(topic)) == 0
