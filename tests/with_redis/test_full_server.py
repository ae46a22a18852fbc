"""A full server (maxmemory, noeviction) refuses what is enqueued; a plain stream on it is drained."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from sqlalchemy import Engine

from conquiet import DrainError, DrainLimits, QueueConfig, QueueError, RedisStreamsQueue, drain, drain_stale
from conquiet.consume import dead_letter_stream
from conquiet.queue import StreamWriter
from tests.services import REDIS_KINDS
from tests.with_redis.full_server import LARGE, fill, server_of_its_own

STREAM = "orders"


@pytest.fixture(params=REDIS_KINDS)
def client(request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    with server_of_its_own(request.param) as opened:
        yield opened


def fill_stream(client: redis.Redis) -> int:
    writer = StreamWriter(client, STREAM)
    return fill(client, lambda number, text: writer.enqueue({"n": number, "text": text}))


def queue_of(client: redis.Redis, consumer: str) -> RedisStreamsQueue:
    return RedisStreamsQueue(client, QueueConfig(STREAM, "billing", consumer, block_ms=50))


def test_a_new_group_drains_a_full_stream_and_its_dead_letters_are_written(
    client: redis.Redis, engine: Engine
):
    sent = fill_stream(client)
    unlimited = DrainLimits(max_messages=None, max_failures=None, idle_ms=50, max_deliveries=1)
    handled: list[int] = []

    def handle(msg, session):
        if msg.payload["n"] % 10 == 3:
            raise ValueError("fails always")
        handled.append(msg.payload["n"])

    with pytest.raises(DrainError):
        drain(queue_of(client, "worker-1"), handle, engine, unlimited)
    report = drain_stale(queue_of(client, "worker-2"), handle, engine, unlimited, min_idle_ms=0)

    failed = [number for number in range(sent) if number % 10 == 3]
    assert sorted(handled + failed) == list(range(sent))
    assert report.dead_lettered == len(failed) == client.xlen(dead_letter_stream(STREAM))
    assert client.xpending(STREAM, "billing")["pending"] == 0
    with pytest.raises(QueueError, match="The server is full"):
        StreamWriter(client, STREAM).enqueue({"text": LARGE})
    client.xtrim(STREAM, maxlen=0, approximate=False)
    assert StreamWriter(client, STREAM).enqueue({"text": "x" * 8_000})


def test_messages_are_enqueued_once_or_refused_by_a_full_server(client: redis.Redis):
    fill_stream(client)
    length = client.xlen(STREAM)
    writer, large = StreamWriter(client, STREAM), {"text": LARGE}

    for enqueue in (
        lambda: writer.enqueue(large),
        lambda: writer.enqueue_many([large]),
        lambda: writer.enqueue_once([large], dedupe_id="new"),
    ):
        with pytest.raises(QueueError, match=r"maxmemory.*The server is full"):
            enqueue()

    assert client.xlen(STREAM) == length


def test_what_a_full_server_has_pending_is_renewed_handed_back_and_taken_over(
    client: redis.Redis, engine: Engine
):
    sent = fill_stream(client)
    first = queue_of(client, "worker-1")
    renewed, handed_back, _left = first.read(50, count=3)

    assert first.renew([renewed]) == [renewed]
    assert first.hand_back([handed_back]) == [handed_back]
    unlimited, second = DrainLimits(max_messages=None, idle_ms=50), queue_of(client, "worker-2")
    report = drain(second, lambda msg, session: None, engine, unlimited, take_over_from=["worker-1"])

    assert (report.first_id, report.handled) == (renewed.id, sent)
    assert second.consumer_names() == []
