"""backlog_stats: a truthful look, where unknown is None and never 0."""

from __future__ import annotations

import pytest
import redis

from conquiet import QueueError

GROUP = "billing"


def test_an_empty_stream_has_no_backlog(queue):
    stats = queue.backlog_stats()

    assert (stats.length, stats.lag, stats.pending) == (0, 0, 0)
    assert (stats.oldest_pending_age_ms, stats.oldest_undelivered_age_ms) == (None, None)


def test_lag_pending_and_consumers_are_told(make_queue, stream):
    make_queue().enqueue_many([{"n": n} for n in range(10)])
    make_queue("a").read(50, count=3)
    make_queue("b").read(50, count=2)

    stats = make_queue().backlog_stats()

    assert (stats.stream, stats.group) == (stream, GROUP)
    assert (stats.length, stats.lag, stats.pending) == (10, 5, 5)
    assert {consumer.name: consumer.pending for consumer in stats.consumers} == {"a": 3, "b": 2}
    assert all(consumer.idle_ms >= 0 for consumer in stats.consumers)


def test_the_source_of_the_lag_is_the_server_or_a_count(queue, client):
    queue.enqueue_many([{"n": n} for n in range(3)])

    stats = queue.backlog_stats()

    knows_lag = int(client.info("server")["redis_version"].split(".")[0]) >= 7
    assert (stats.lag, stats.lag_source) == (3, "server" if knows_lag else "counted")


def test_a_lag_that_the_server_does_not_know_is_counted_up_to_a_limit_and_else_unknown(queue, client, stream):
    ids = queue.enqueue_many([{"n": n} for n in range(20)])
    queue.read(50)
    client.xdel(stream, ids[10])

    counted = queue.backlog_stats(count_limit=100)
    unknown = queue.backlog_stats(count_limit=5)

    assert (counted.lag, counted.lag_source) == (18, "counted")
    assert (unknown.lag, unknown.lag_source) == (None, None)


def test_ages_are_those_of_the_messages_by_the_servers_clock(make_queue, client, stream):
    queue = make_queue()
    now_ms = int(client.time()[0]) * 1000
    client.xadd(stream, {"data": "{}"}, id=f"{now_ms - 90_000}-0")
    client.xadd(stream, {"data": "{}"}, id=f"{now_ms - 30_000}-0")
    queue.read(50)

    stats = queue.backlog_stats()

    assert 90_000 <= stats.oldest_pending_age_ms < 120_000
    assert 30_000 <= stats.oldest_undelivered_age_ms < 60_000


def test_an_id_in_the_future_has_no_negative_age(queue, client, stream):
    client.xadd(stream, {"data": "{}"}, id=f"{10**15}-0")

    assert queue.backlog_stats().oldest_undelivered_age_ms == 0


def test_a_group_that_is_gone_is_visible(queue, client, stream):
    client.xgroup_destroy(stream, GROUP)

    with pytest.raises(QueueError, match="NOGROUP") as caught:
        queue.backlog_stats()

    assert isinstance(caught.value.__cause__, redis.ResponseError)
