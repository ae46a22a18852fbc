"""Clients as users hand them in: whatever their settings, the same messages and no silent loss."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from conquiet import MalformedEntryError, QueueConfig, QueueError, RedisStreamsQueue
from tests.eventually import eventually

GROUP = "billing"

SETTINGS = {
    "redis-py's defaults": {},
    "decode_responses": {"decode_responses": True},
    "RESP2": {"protocol": 2},
    "RESP3": {"protocol": 3},
    "RESP3, decode_responses": {"protocol": 3, "decode_responses": True},
    "RESP3, new responses": {"protocol": 3, "legacy_responses": False},
    "another encoding": {"encoding": "latin-1"},
    "one connection": {"single_connection_client": True},
}


@pytest.fixture(params=[*SETTINGS.values()], ids=[*SETTINGS])
def handed_in(request, server_url):
    with redis.Redis.from_url(server_url, **request.param) as opened:
        yield opened


def test_every_call_works_on_a_client_with_any_settings(handed_in, stream, client):
    queue = RedisStreamsQueue(handed_in, QueueConfig(stream, GROUP, "wörker-1", block_ms=50))
    payload = {"name": "Łódź ☃"}
    ids = [queue.enqueue(payload), *queue.enqueue_many([payload, payload, payload])]

    messages = queue.read(50, count=2)
    assert [msg.id for msg in messages] == ids[:2]
    assert [msg.payload for msg in messages] == [payload, payload]
    (third,) = queue.ack_and_read([messages[0].id], 50)
    assert queue.renew([messages[1], third]) == [messages[1], third]
    assert queue.hand_back([third]) == [third]
    assert [msg.id for msg in queue.claim_stale(10_000)] == [third.id]
    stats = queue.backlog_stats()
    assert (stats.length, stats.lag, stats.pending) == (4, 1, 2)
    assert [consumer.name for consumer in stats.consumers] == ["wörker-1"]
    client.xadd(stream, {"data": b"\xff"})
    with pytest.raises(MalformedEntryError, match="not UTF-8"):
        queue.read(50, count=2)


def test_an_entry_with_a_repeated_field_is_malformed_on_any_settings(handed_in, stream, client):
    queue = RedisStreamsQueue(handed_in, QueueConfig(stream, GROUP, "worker-1"))
    for call in (lambda: queue.read(50), lambda: queue.claim_stale(0)):
        client.execute_command("XADD", stream, "*", "data", "{}", "data", "{}")

        with pytest.raises(MalformedEntryError, match="exactly one field"):
            call()


def test_the_users_client_is_left_as_it_was(server_url, stream):
    with redis.Redis.from_url(server_url, protocol=2) as handed_in:
        queue = RedisStreamsQueue(handed_in, QueueConfig(stream, GROUP, "worker-1"))
        entry_id = queue.enqueue({"n": 1})

        reply = handed_in.xreadgroup(GROUP, "worker-2", {stream: ">"})
        queue.close()

        assert reply == [[stream.encode(), [(entry_id.encode(), {b"data": b'{"n":1}'})]]]
        assert handed_in.ping()


def pool_of(queue: RedisStreamsQueue) -> Any:
    client: Any = queue.client
    return client.connection_pool


def calls_of_xreadgroup(client) -> int:
    return client.info("commandstats").get("cmdstat_xreadgroup", {"calls": 0})["calls"]


@pytest.mark.parametrize("retries", [0, 3])
def test_a_read_ends_before_the_clients_socket_timeout_would_cut_it_off(server_url, stream, client, retries):
    with redis.Redis.from_url(server_url, socket_timeout=0.6, retry=Retry(NoBackoff(), retries)) as handed_in:
        queue = RedisStreamsQueue(handed_in, QueueConfig(stream, GROUP, "worker-1", block_ms=5_000))
        reads_before = calls_of_xreadgroup(client)

        assert queue.read(5_000) == []

        # One that is cut off would be an error, or be sent again.
        assert calls_of_xreadgroup(client) - reads_before == 1


def test_a_client_made_from_a_url_never_retries(server_url, stream):
    queue = RedisStreamsQueue.from_url(server_url, QueueConfig(stream, GROUP, "worker-1"))
    pool = pool_of(queue)

    connection = pool.get_connection()

    assert connection.retry.get_retries() == 0
    assert connection.socket_timeout == 10
    pool.release(connection)
    queue.close()


def test_options_in_the_url_win(server_url, stream):
    url = f"{server_url}?socket_timeout=3&client_name=mine"
    with RedisStreamsQueue.from_url(url, QueueConfig(stream, GROUP, "worker-1")) as queue:
        assert queue.client.client_getname() in ("mine", b"mine")
        assert pool_of(queue).connection_kwargs["socket_timeout"] == 3


def test_close_closes_only_a_client_that_the_queue_opened(server_url, stream):
    config = QueueConfig(stream, GROUP, "worker-1")
    with redis.Redis.from_url(server_url) as mine:
        RedisStreamsQueue(mine, config).close()
        assert mine.connection_pool._available_connections

    with RedisStreamsQueue.from_url(server_url, config) as owned:
        pool = pool_of(owned)
    assert all(connection._sock is None for connection in pool._available_connections)


def test_a_failed_construction_leaves_no_connection_open(server_url, client, stream):
    client.set(stream, "not a stream")
    before = len(client.client_list())

    with pytest.raises(QueueError):
        RedisStreamsQueue.from_url(server_url, QueueConfig(stream, GROUP, "worker-1"))

    eventually(lambda: len(client.client_list()) <= before)
