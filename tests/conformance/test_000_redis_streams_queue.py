"""Document 000, clause by clause: the Redis Streams queue. The number in a heading is the clause's."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from prometheus_client import REGISTRY

from conquiet import (
    AsyncQueue,
    MalformedEntryError,
    QueueConfig,
    QueueConsumer,
    QueueError,
    QueueMessage,
    RedisStreamsQueue,
)
from tests.awaited import Awaited, EventLoop
from tests.eventually import HANG_S, eventually

GROUP = "billing"


def pending_ids(client: redis.Redis, stream: str, group: str = GROUP) -> list[str]:
    rows: Any = client.xpending_range(stream, group, "-", "+", 100)
    return [row["message_id"].decode() for row in rows]


def metric(name: str, stream: str) -> float:
    return REGISTRY.get_sample_value(name, {"stream": stream}) or 0.0


def queue_of_one_try(url: str, stream: str, **options: Any) -> RedisStreamsQueue:
    config = QueueConfig(stream, GROUP, "worker-1", block_ms=50)
    return RedisStreamsQueue.from_url(url, config, **options)


@contextmanager
def awaiting_queue_of_one_try(url: str, stream: str, **options: Any) -> Iterator[Awaited]:
    with EventLoop() as loop:
        opened = Awaited(AsyncQueue.from_url(url, stream, **options), loop)
        yield opened
        opened.aclose()


@pytest.fixture(params=["plain", "asyncio"])
def writer(request, queue, server_url, stream):
    """What adds messages: the queue, and the one of an event loop."""
    if request.param == "plain":
        yield queue
        return
    with awaiting_queue_of_one_try(server_url, stream) as opened:
        yield opened


# 2 Delivery semantics and guarantees


def test_2_1_a_message_that_was_not_acked_may_be_delivered_more_than_once(make_queue):
    make_queue().enqueue({"n": 1})
    (first,) = make_queue("worker-1").read(50)

    (second,) = make_queue("worker-2").claim_stale(0)

    assert second.id == first.id
    assert second.payload == first.payload


def test_2_2_messages_of_one_stream_are_delivered_in_the_order_of_their_ids(queue):
    ids = [queue.enqueue({"n": n}) for n in range(20)]

    delivered = [queue.read(50)[0].id for _ in range(20)]

    assert delivered == ids


def test_2_3_a_message_that_was_read_is_not_delivered_as_new_to_another_consumer(make_queue):
    make_queue().enqueue({"n": 1})
    assert len(make_queue("worker-1").read(50)) == 1

    assert make_queue("worker-2").read(50) == []


def test_2_3_a_message_of_a_crashed_consumer_is_delivered_again_after_the_idle_threshold(make_queue):
    make_queue().enqueue({"n": 1})
    make_queue("crashed").read(50)
    survivor = make_queue("survivor")

    assert survivor.claim_stale(60_000) == []
    (again,) = eventually(lambda: survivor.claim_stale(20))

    assert again.delivery_count == 2


# 3 Message format


def test_3_1_an_entry_has_exactly_one_field_data_that_is_utf8_json(queue, client, stream):
    entry_id = queue.enqueue({"name": "Łódź ☃", "n": 1})

    ((raw_id, fields),) = client.xrange(stream)

    assert raw_id.decode() == entry_id
    assert list(fields) == [b"data"]
    assert json.loads(fields[b"data"].decode("utf-8")) == {"name": "Łódź ☃", "n": 1}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (["other", "{}"], "exactly one field"),
        (["data", "{}", "extra", "1"], "exactly one field"),
        (["data", "{}", "data", "{}"], "exactly one field"),
        (["data", "not json"], "not JSON"),
        (["data", "[1]"], "not an object"),
        (["data", "null"], "not an object"),
        (["data", '{"n": NaN}'], "not JSON"),
        (["data", b"\xff\xfe"], "not UTF-8"),
        (["data", "[" * 100_000], "nested too deeply"),
    ],
)
def test_3_1_an_entry_of_any_other_form_is_a_visible_error_and_stays_pending(
    queue, client, stream, fields, reason
):
    before = queue.enqueue({"n": 1})
    bad_id = client.execute_command("XADD", stream, "*", *fields).decode()
    after = queue.enqueue({"n": 2})

    with pytest.raises(MalformedEntryError, match=reason) as caught:
        queue.read(50, count=10)

    assert [entry.id for entry in caught.value.entries] == [bad_id]
    flat = [part if isinstance(part, bytes) else part.encode() for part in fields]
    assert caught.value.entries[0].fields == tuple(zip(flat[::2], flat[1::2], strict=True))
    assert [msg.id for msg in caught.value.messages] == [before, after]
    assert (caught.value.stream, caught.value.group) == (stream, GROUP)
    assert pending_ids(client, stream) == [before, bad_id, after]


def test_3_1_a_malformed_entry_does_not_block_the_next_message(queue, client, stream):
    bad_id = client.xadd(stream, {"other": "1"}).decode()
    queue.enqueue({"n": 2})
    consumer = QueueConsumer(queue)

    with pytest.raises(MalformedEntryError, match=bad_id):
        consumer.next()
    msg = consumer.next()

    assert msg is not None
    assert msg.payload == {"n": 2}
    assert bad_id in pending_ids(client, stream)


def test_3_1_a_malformed_entry_is_a_visible_error_of_claim_stale_too(make_queue, client, stream):
    bad_id = client.xadd(stream, {"other": "1"}).decode()
    good_id = make_queue().enqueue({"n": 2})
    with pytest.raises(MalformedEntryError):
        make_queue().read(50, count=2)

    with pytest.raises(MalformedEntryError) as caught:
        make_queue("worker-2").claim_stale(0)

    assert caught.value.entries[0].id == bad_id
    assert caught.value.entries[0].delivery_count == 2
    assert [(msg.id, msg.delivery_count) for msg in caught.value.messages] == [(good_id, 2)]


def test_3_1_a_malformed_entry_is_settled_by_acking_its_id(queue, client, stream):
    bad_id = client.xadd(stream, {"other": "1"}).decode()
    with pytest.raises(MalformedEntryError):
        queue.read(50)

    acked = queue.ack_ids([bad_id])

    assert acked == 1
    assert pending_ids(client, stream) == []


def test_3_2_the_payload_comes_back_as_a_dict_equal_to_what_was_enqueued(queue, writer):
    payload = {"text": "ä", "int": 2**70, "float": 0.1, "none": None, "flag": True, "list": [1, {"deep": []}]}
    writer.enqueue(payload)

    (msg,) = queue.read(50)

    assert msg.payload == payload


@pytest.mark.parametrize("payload", [{"b": b"raw"}, ["no", "object"], {"nan": float("nan")}, {1: "key"}])
def test_3_2_a_payload_that_is_no_json_object_is_refused_before_redis_is_called(
    writer, client, stream, payload
):
    with pytest.raises((TypeError, ValueError), match="payload"):
        writer.enqueue(payload)

    assert client.xlen(stream) == 0


# 4 Configuration


def test_4_1_the_defaults_are_those_of_the_document():
    config = QueueConfig("orders", "billing", "worker-1")

    assert (config.stream_key, config.consumer_group, config.consumer_name) == (
        "orders",
        "billing",
        "worker-1",
    )
    assert (config.block_ms, config.max_read_count, config.claim_idle_ms) == (5_000, 1, 60_000)


def test_4_2_a_queue_consumer_refuses_a_max_read_count_other_than_one(make_queue):
    queue = make_queue(max_read_count=2)

    with pytest.raises(ValueError, match=r"max_read_count must be 1 .* got 2"):
        QueueConsumer(queue)


# 5.2 Consumer group initialization


def test_5_2_the_group_is_created_at_startup_from_the_streams_beginning(make_queue, client, stream):
    client.xadd(stream, {"data": '{"n": 1}'})

    (msg,) = make_queue(group="late").read(50)

    assert msg.payload == {"n": 1}


def test_5_2_the_stream_is_created_with_the_group(queue, client, stream):
    assert client.type(stream) == b"stream"
    assert client.xinfo_groups(stream)[0]["name"] == GROUP.encode()


def test_5_2_a_group_that_exists_is_ignored_and_kept_as_it_is(make_queue):
    make_queue().enqueue({"n": 1})
    make_queue().read(50)

    again = make_queue()

    assert again.read(50) == []


def test_5_2_any_other_error_of_the_group_creation_propagates(server_url, client, stream):
    client.set(stream, "not a stream")

    with pytest.raises(QueueError, match="WRONGTYPE") as caught:
        RedisStreamsQueue.from_url(server_url, QueueConfig(stream, GROUP, "worker-1"))

    assert isinstance(caught.value.__cause__, redis.ResponseError)
    assert (caught.value.stream, caught.value.group) == (stream, GROUP)


def test_5_2_a_destroyed_group_is_not_recreated_but_visible(queue, client, stream):
    client.xgroup_destroy(stream, GROUP)

    with pytest.raises(QueueError, match="NOGROUP") as caught:
        queue.read(50)

    assert isinstance(caught.value.__cause__, redis.ResponseError)
    assert client.xinfo_groups(stream) == []


# 5.3 Enqueue


def test_5_3_enqueue_returns_the_entry_id(writer, client, stream):
    entry_id = writer.enqueue({"n": 1})

    assert [raw_id.decode() for raw_id, _ in client.xrange(stream)] == [entry_id]


def test_5_3_enqueue_many_returns_all_ids_in_order(writer, client, stream):
    ids = writer.enqueue_many(({"n": n} for n in range(250)), batch_size=100)

    stored = client.xrange(stream)
    assert [raw_id.decode() for raw_id, _ in stored] == ids
    assert [json.loads(fields[b"data"])["n"] for _, fields in stored] == list(range(250))


def test_5_3_enqueue_many_adds_nothing_if_one_payload_is_refused(writer, client, stream):
    with pytest.raises(TypeError, match="tuple"):
        writer.enqueue_many([{"n": 1}, {"n": (2,)}])

    assert client.xlen(stream) == 0


# 5.4 Read


@pytest.mark.parametrize("block_ms", [0, -1, True, False, 1.5, None, "50"])
def test_5_4_block_ms_that_is_no_positive_int_is_refused_before_redis_is_called(
    make_queue, client, stream, block_ms
):
    queue = make_queue()
    queue.enqueue({"n": 1})

    with pytest.raises((TypeError, ValueError), match=rf"block_ms .*{block_ms!r}"):
        queue.read(block_ms)

    assert pending_ids(client, stream) == []


@pytest.mark.parametrize("count", [0, -1, True, 1.0, None])
def test_5_4_a_count_that_is_no_positive_int_is_refused(queue, count):
    with pytest.raises((TypeError, ValueError), match=rf"count .*{count!r}"):
        queue.read(50, count=count)


def test_5_4_the_count_bounds_what_is_returned(queue):
    queue.enqueue_many([{"n": n} for n in range(5)])

    assert len(queue.read(50)) == 1
    assert len(queue.read(50, count=3)) == 3
    assert len(queue.read(50, count=3)) == 1


def test_5_4_returned_messages_become_pending_for_this_consumer(queue, client, stream):
    entry_id = queue.enqueue({"n": 1})

    (msg,) = queue.read(50)

    (row,) = client.xpending_range(stream, GROUP, "-", "+", 10)
    assert (row["message_id"].decode(), row["consumer"], row["times_delivered"]) == (entry_id, b"worker-1", 1)
    assert msg == QueueMessage(stream, GROUP, entry_id, {"n": 1}, 1)


def test_5_4_an_empty_stream_gives_an_empty_list_after_blocking(queue):
    started = time.monotonic()

    assert queue.read(80) == []

    assert time.monotonic() - started >= 0.07


def test_5_4_a_message_that_arrives_while_a_read_blocks_is_returned_at_once(make_queue):
    queue, sender = make_queue(), make_queue("sender")
    timer = threading.Timer(0.05, lambda: sender.enqueue({"n": 1}))
    timer.start()

    (msg,) = queue.read(5_000)

    timer.join()
    assert msg.payload == {"n": 1}


def test_5_4_a_message_is_frozen(queue):
    queue.enqueue({"n": 1})
    (msg,) = queue.read(50)

    with pytest.raises(AttributeError):
        msg.id = "0-1"


# 5.5 Acknowledge


def test_5_5_an_acked_message_is_no_longer_pending(queue, client, stream):
    queue.enqueue({"n": 1})
    (msg,) = queue.read(50)

    queue.ack(msg)

    assert pending_ids(client, stream) == []


def test_5_5_acking_twice_or_what_is_not_pending_is_allowed(queue, stream):
    queue.enqueue({"n": 1})
    (msg,) = queue.read(50)
    queue.ack(msg)

    queue.ack(msg)
    queue.ack(QueueMessage(stream, GROUP, "1-1", {}, 1))


def test_5_5_errors_of_an_ack_propagate(queue, client, stream):
    queue.enqueue({"n": 1})
    (msg,) = queue.read(50)
    client.delete(stream)
    client.set(stream, "not a stream")

    with pytest.raises(QueueError, match="WRONGTYPE"):
        queue.ack(msg)


def test_5_5_a_message_of_another_stream_or_group_is_refused(queue, stream):
    for foreign in (QueueMessage("other", GROUP, "1-1", {}), QueueMessage(stream, "other", "1-1", {})):
        with pytest.raises(ValueError, match="other"):
            queue.ack(foreign)


# 5.6 and 5.7 Claim stale messages


def test_5_6_only_messages_idle_for_min_idle_ms_are_claimed(make_queue, client, stream):
    stale, fresh = (make_queue().enqueue({"n": n}) for n in range(2))
    make_queue("slow").read(50, count=2)
    client.xclaim(stream, GROUP, "slow", 0, [stale], idle=120_000)

    claimed = make_queue("worker-2").claim_stale(60_000)

    assert [msg.id for msg in claimed] == [stale]
    owners = {
        row["message_id"].decode(): row["consumer"]
        for row in client.xpending_range(stream, GROUP, "-", "+", 9)
    }
    assert owners == {stale: b"worker-2", fresh: b"slow"}


def test_5_6_a_claim_is_bounded_by_its_count(make_queue):
    make_queue().enqueue_many([{"n": n} for n in range(20)])
    make_queue("slow").read(50, count=20)

    assert len(make_queue("worker-2").claim_stale(0)) == 10
    assert len(make_queue("worker-2").claim_stale(0, count=3)) == 3


def test_5_6_a_claimed_message_carries_its_delivery_count(make_queue):
    make_queue().enqueue({"n": 1})
    counts = [make_queue("worker-1").read(50)[0].delivery_count]

    counts += [make_queue(f"worker-{n}").claim_stale(0)[0].delivery_count for n in (2, 3)]

    assert counts == [1, 2, 3]


def test_5_6_entries_that_were_trimmed_or_deleted_meanwhile_are_skipped(make_queue, client, stream):
    deleted, trimmed, kept = sorted(make_queue().enqueue({"n": n}) for n in range(3))
    make_queue("slow").read(50, count=3)
    client.xdel(stream, deleted)
    client.xtrim(stream, minid=kept, approximate=False)

    claimed = make_queue("worker-2").claim_stale(0)

    assert [msg.id for msg in claimed] == [kept]
    assert trimmed != kept


@pytest.mark.parametrize("min_idle_ms", [-1, True, 1.5, None])
def test_5_6_a_min_idle_ms_that_is_no_int_of_zero_or_more_is_refused(queue, min_idle_ms):
    with pytest.raises((TypeError, ValueError), match=rf"min_idle_ms .*{min_idle_ms!r}"):
        queue.claim_stale(min_idle_ms)


def test_5_7_any_consumer_may_claim_and_nobody_does_it_by_itself(make_queue, client, stream):
    make_queue().enqueue({"n": 1})
    make_queue("crashed").read(50)
    client.xclaim(stream, GROUP, "crashed", 0, pending_ids(client, stream), idle=10**9)
    worker = QueueConsumer(make_queue("worker-2"))

    assert worker.next() is None

    (row,) = client.xpending_range(stream, GROUP, "-", "+", 10)
    assert row["consumer"] == b"crashed"


# 6 QueueConsumer: more in document 001


def test_6_3_after_stop_a_message_in_flight_stays_pending(make_queue, client, stream):
    queue = make_queue()
    entry_id = queue.enqueue({"n": 1})
    consumer = QueueConsumer(queue)
    consumer.next()

    consumer.stop()

    assert consumer.next() is None
    assert pending_ids(client, stream) == [entry_id]


def test_6_6_without_an_ack_a_message_is_retried_by_staleness_only(make_queue):
    queue = make_queue()
    queue.enqueue({"n": 1})
    consumer = QueueConsumer(queue)
    msg = consumer.next()
    assert msg is not None

    assert consumer.next() is None
    (again,) = consumer.claim_stale(min_idle_ms=0)

    assert again.id == msg.id


# 7 Metrics


def test_7_each_successful_call_is_counted_for_its_stream(make_queue, stream):
    queue = make_queue()
    queue.enqueue_many([{"n": n} for n in range(3)])
    messages = queue.read(50, count=3)
    queue.ack(messages[0])
    make_queue("worker-2").claim_stale(0)

    assert metric("conquiet_queue_messages_read_total", stream) == 3
    assert metric("conquiet_queue_messages_ack_total", stream) == 1
    assert metric("conquiet_queue_messages_claimed_total", stream) == 2
    assert metric("conquiet_queue_read_latency_seconds_count", stream) == 1


def test_7_a_call_that_failed_is_not_counted(queue, client, stream):
    queue.enqueue({"n": 1})
    (msg,) = queue.read(50)
    client.delete(stream)
    client.set(stream, "not a stream")

    for call in (lambda: queue.ack(msg), lambda: queue.read(50), lambda: queue.claim_stale(0)):
        with pytest.raises(QueueError):
            call()

    assert metric("conquiet_queue_messages_ack_total", stream) == 0
    assert metric("conquiet_queue_messages_read_total", stream) == 1
    assert metric("conquiet_queue_messages_claimed_total", stream) == 0
    assert metric("conquiet_queue_read_latency_seconds_count", stream) == 1


# 8 Error handling


def test_8_1_every_call_raises_a_queue_error_with_stream_group_and_cause(queue, client, stream):
    queue.enqueue({"n": 1})
    (msg,) = queue.read(50)
    client.delete(stream)
    client.set(stream, "not a stream")
    calls = {
        "read": lambda: queue.read(50),
        "ack": lambda: queue.ack(msg),
        "ack_and_read": lambda: queue.ack_and_read([msg.id], 50),
        "claim_stale": lambda: queue.claim_stale(0),
        "renew": lambda: queue.renew([msg]),
        "hand_back": lambda: queue.hand_back([msg]),
        "backlog_stats": lambda: queue.backlog_stats(),
    }

    for name, call in calls.items():
        with pytest.raises(QueueError, match="WRONGTYPE") as caught:
            call()
        assert isinstance(caught.value.__cause__, redis.RedisError), name
        assert (caught.value.stream, caught.value.group) == (stream, GROUP), name


def test_8_1_every_call_that_adds_raises_a_queue_error_with_stream_and_cause(queue, writer, client, stream):
    client.delete(stream)
    client.set(stream, "not a stream")

    for call in (lambda: writer.enqueue({"n": 1}), lambda: writer.enqueue_many([{"n": 1}])):
        with pytest.raises(QueueError, match="WRONGTYPE") as caught:
            call()
        assert isinstance(caught.value.__cause__, redis.RedisError)
        # A queue has a group; what only adds has none.
        assert (caught.value.stream, caught.value.group) == (stream, GROUP if writer is queue else None)


def test_8_1_a_connection_that_drops_in_the_middle_of_a_blocking_read_is_visible_and_not_retried(
    make_queue, client, stream
):
    queue = make_queue()
    raised: list[BaseException] = []

    def read() -> None:
        try:
            queue.read(10_000)
        except BaseException as error:
            raised.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    blocked = eventually(
        lambda: [row for row in client.client_list() if row["cmd"] == "xreadgroup" and "b" in row["flags"]]
    )
    for row in blocked:
        client.client_kill_filter(_id=row["id"])
    reader.join(timeout=HANG_S)

    assert not reader.is_alive()
    assert isinstance(raised[0], QueueError)
    assert isinstance(raised[0].__cause__, redis.ConnectionError)


def test_8_1_a_server_that_is_unavailable_is_a_queue_error_of_the_construction():
    with pytest.raises(QueueError) as caught:
        RedisStreamsQueue.from_url("redis://127.0.0.1:1", QueueConfig("orders", GROUP, "worker-1"))

    assert isinstance(caught.value.__cause__, redis.ConnectionError)


@pytest.mark.parametrize("open_writer", [queue_of_one_try, awaiting_queue_of_one_try])
def test_8_1_nothing_is_sent_twice_when_an_answer_is_lost(server_url, client, stream, open_writer):
    with open_writer(server_url, stream, socket_timeout=0.1) as writer:
        client.execute_command("CLIENT", "PAUSE", 400, "WRITE")

        with pytest.raises(QueueError) as caught:
            writer.enqueue({"n": 1})

    assert isinstance(caught.value.__cause__, redis.TimeoutError)
    client.set(f"{stream}:after the pause", "1")
    assert client.xlen(stream) <= 1
