"""Arguments of another kind than wanted are refused at once, with the kind that is wanted."""

from __future__ import annotations

import pytest
import redis.asyncio

from conquiet import DrainLimits, QueueConfig, QueueError, RedisStreamsQueue, StreamWriter, drain, drain_stale
from conquiet.mq import Producer, Topics, drain_partition, drain_topic
from conquiet.queue import open_client

CONFIG = QueueConfig("orders", "billing", "worker-1", block_ms=50)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        (None, "url must be a str, as 'redis://127.0.0.1:6379/0', not None: is the variable set"),
        (b"redis://127.0.0.1", "url must be a str"),
        (CONFIG, "url must be a str"),
    ],
)
def test_what_is_no_url_is_refused(url, sentence):
    with pytest.raises(TypeError, match=sentence):
        open_client(url)


@pytest.mark.parametrize("url", ["localhost:6379", "redis.example.com", ""])
def test_a_url_without_a_scheme_is_answered_with_one(url):
    with pytest.raises(ValueError, match="got none; write redis://HOST:PORT/0"):
        open_client(url)


def test_arguments_in_the_wrong_order_are_refused(valkey_url):
    with pytest.raises(TypeError, match="config must be a QueueConfig, got 'redis://"):
        RedisStreamsQueue.from_url(CONFIG, valkey_url)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"client must be a redis\.Redis or RedisCluster, got 'orders'"):
        StreamWriter("orders", open_client(valkey_url))  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [Producer, Topics, lambda client: StreamWriter(client, "orders")])
def test_an_asyncio_client_is_refused_where_calls_are_plain(make):
    with pytest.raises(TypeError, match=r"not one of redis\.asyncio"):
        make(redis.asyncio.Redis())


def test_what_is_no_topic_is_refused(valkey_url, queue):
    with pytest.raises(TypeError, match="topic must be a Topic or the name of one, got <"):
        Producer(open_client(valkey_url)).send(queue, {"n": 1})


@pytest.mark.parametrize("drained_by", [drain, drain_stale])
def test_what_is_no_queue_is_refused_by_drains_of_streams_with_the_drains_of_topics(
    drained_by, client, stream, engine
):
    topic = Topics(client).create(stream.replace(":", "-"), 1)
    limits = DrainLimits(concurrency=4)

    for given, name in [("orders", "'orders'"), (topic, "Topic")]:
        sentence = (
            f"queue must be a RedisStreamsQueue, got {name}.*; a topic is drained by drain_partition or "
        )
        with pytest.raises(TypeError, match=sentence + "drain_topic"):
            # The limits and the handler are wrong, too: the first word is about the queue.
            drained_by(given, None, engine, limits)


@pytest.mark.parametrize("how", [(drain_partition, 0), (drain_topic,)])
def test_a_queue_is_refused_by_drains_of_topics_with_its_own(how, queue, engine):
    drained_by, *more = how
    with pytest.raises(TypeError, match=r"topic must be a Topic.*; a RedisStreamsQueue is drained by drain$"):
        drained_by(queue, *more, "not a group: *", None, engine)


def test_a_queue_that_is_closed_opens_no_connection(make_queue):
    queue = make_queue()
    queue.enqueue({"n": 1})

    queue.close()

    with pytest.raises(QueueError, match="it is closed"):
        queue.enqueue({"n": 2})
    with pytest.raises(QueueError, match="it is closed"):
        queue.read(10)
    queue.close()
