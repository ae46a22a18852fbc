"""peek_backlog: the same look from outside, which makes neither stream nor group."""

from __future__ import annotations

import asyncio
import uuid

import pytest
import redis

from conquiet import (
    EmbeddedServer,
    QueueError,
    open_async_client,
    open_client,
    peek_backlog,
    peek_backlog_async,
)
from conquiet.mq import Topics, topic_streams_async

GROUP = "billing"


async def peek_async(url: str, stream: str):
    client = open_async_client(url)
    try:
        return await peek_backlog_async(client, stream=stream, group=GROUP)
    finally:
        await client.aclose()


@pytest.fixture(params=["plain", "asyncio"])
def peek(request, server_url):
    def look(stream: str):
        if request.param == "asyncio":
            return asyncio.run(peek_async(server_url, stream))
        with open_client(server_url) as client:
            return peek_backlog(client, stream=stream, group=GROUP)

    return look


def test_it_sees_what_the_queue_sees(peek, queue, stream):
    queue.enqueue_many([{"n": n} for n in range(5)])
    queue.read(50, count=2)

    seen = peek(stream)

    own = queue.backlog_stats()
    assert (seen.length, seen.lag, seen.lag_source, seen.pending) == (5, 3, own.lag_source, 2)
    assert [consumer.name for consumer in seen.consumers] == ["worker-1"]
    assert seen.oldest_pending_age_ms is not None
    assert seen.oldest_undelivered_age_ms is not None


@pytest.mark.parametrize("options", ["", "?protocol=3", "?decode_responses=true"])
def test_ids_are_told_in_whatever_form_the_client_answers(server_url, queue, stream, options):
    ids = queue.enqueue_many([{"n": n} for n in range(5)])
    queue.read(50, count=2)

    with open_client(server_url + options) as client:
        seen = peek_backlog(client, stream=stream, group=GROUP)

    assert (seen.last_id, seen.last_delivered_id) == (ids[4], ids[1])


def test_without_the_group_everything_is_lag_and_no_group_is_made(peek, client, stream):
    client.xadd(stream, {"data": "{}"})
    client.xadd(stream, {"data": "{}"})

    seen = peek(stream)

    assert (seen.lag, seen.pending, seen.consumers) == (2, 0, ())
    assert seen.oldest_undelivered_age_ms is not None
    assert client.xinfo_groups(stream) == []


def test_without_the_stream_there_is_nothing_and_no_stream_is_made(peek, client, stream):
    seen = peek(stream)

    assert (seen.length, seen.lag, seen.pending, seen.last_id) == (0, 0, 0, "0-0")
    assert not client.exists(stream)


def test_a_key_of_another_kind_is_an_error(peek, client, stream):
    client.set(stream, "x")

    with pytest.raises(QueueError, match=stream):
        peek(stream)


def test_a_server_that_is_unavailable_is_an_error():
    with pytest.raises(QueueError, match="orders"):
        asyncio.run(peek_async("redis://127.0.0.1:1", "orders"))


async def streams_async(url: str, topic: str):
    client = open_async_client(url)
    try:
        return await topic_streams_async(client, topic)
    finally:
        await client.aclose()


def test_the_streams_of_a_topic_are_found_from_an_event_loop(client, server_url):
    name = uuid.uuid4().hex
    topic = Topics(client).create(name, 12)

    assert asyncio.run(streams_async(server_url, name)) == [topic.keys.stream(n) for n in range(12)]
    assert asyncio.run(streams_async(server_url, "a:plain:stream")) == ["a:plain:stream"]


def test_it_works_on_a_cluster(stream):
    with EmbeddedServer(cluster=3) as cluster:
        with redis.RedisCluster.from_url(cluster.url.replace("+cluster", "")) as client:
            client.xadd(stream, {"data": "{}"})
            assert peek_backlog(client, stream=stream, group=GROUP).lag == 1
            topic = Topics(client).create("orders", 3)
            assert asyncio.run(streams_async(cluster.url, "orders")) == [
                topic.keys.stream(n) for n in range(3)
            ]
        assert asyncio.run(peek_async(cluster.url, stream)).lag == 1
