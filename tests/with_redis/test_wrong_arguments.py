"""Arguments of another kind than wanted are refused at once, with the kind that is wanted."""

from __future__ import annotations

from typing import Any

import pytest
import redis.asyncio
from sqlalchemy.exc import ObjectNotExecutableError
from sqlalchemy.ext.asyncio import create_async_engine

from conquiet import (
    AsyncQueue,
    DbSession,
    DrainLimits,
    OutboxRelay,
    QueueConfig,
    QueueConsumer,
    QueueError,
    RedisStreamsQueue,
    StandardCodec,
    StreamWriter,
    drain,
    drain_stale,
)
from conquiet.mq import AsyncProducer, ConsumerConfig, Producer, Topics, drain_partition, drain_topic
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
    with pytest.raises(
        TypeError, match=r"must be a QueueConfig, got 'redis:.*; write from_url\(url, config\)"
    ):
        RedisStreamsQueue.from_url(CONFIG, valkey_url)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"client must be a redis\.Redis or RedisCluster, got 'orders'"):
        StreamWriter("orders", open_client(valkey_url))  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [Producer, Topics, lambda client: StreamWriter(client, "orders")])
def test_an_asyncio_client_is_refused_where_calls_are_plain(make):
    with pytest.raises(TypeError, match=r"not one of redis\.asyncio"):
        make(redis.asyncio.Redis())


def test_what_is_no_topic_is_refused(valkey_url, queue):
    with pytest.raises(TypeError, match="got a RedisStreamsQueue; a plain stream is named by"):
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


def test_the_url_of_a_database_is_answered_with_an_engine(queue):
    with pytest.raises(TypeError, match=r"not 'sqlite:///bills\.db'; `create_engine\(url\)` makes one"):
        drain(queue, lambda _msg, _session: None, "sqlite:///bills.db")  # type: ignore[arg-type]


def test_a_queue_that_is_closed_opens_no_connection(make_queue):
    queue = make_queue()
    queue.enqueue({"n": 1})

    queue.close()

    with pytest.raises(QueueError, match="it is closed"):
        queue.enqueue({"n": 2})
    with pytest.raises(QueueError, match="it is closed"):
        queue.read(10)
    queue.close()


@pytest.mark.parametrize("given", ["orders", None])
def test_what_is_no_queue_is_refused_by_its_consumer(given):
    with pytest.raises(TypeError, match="queue must be a RedisStreamsQueue, got "):
        QueueConsumer(given)


def test_a_number_as_limits_is_answered_with_limits(queue, engine):
    with pytest.raises(
        TypeError, match=r"limits must be a DrainLimits, got 100: write DrainLimits\(max_mess"
    ):
        drain(queue, lambda _msg, _session: None, engine, 100)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", [(drain_partition, 0), (drain_topic,)])
def test_limits_and_config_of_a_topic_are_not_taken_for_each_other(how, client, stream):
    topic = Topics(client).create(stream.replace(":", "-"), 1)
    drained_by, *more = how

    with pytest.raises(TypeError, match=r"limits must be a DrainLimits, got ConsumerConfig\("):
        drained_by(topic, *more, "billing", lambda _msg: None, None, ConsumerConfig())
    with pytest.raises(TypeError, match=r"config must be a ConsumerConfig, got DrainLimits\("):
        drained_by(topic, *more, "billing", lambda _msg: None, config=DrainLimits())


def test_the_url_of_a_server_is_refused_by_the_relay(engine, valkey_url):
    with pytest.raises(TypeError, match=r"client must be a redis\.Redis or RedisCluster, got 'redis://"):
        OutboxRelay(engine, valkey_url)


@pytest.mark.parametrize(
    ("method", "remedy"),
    [
        ("commit", "the transaction is committed when the handler returns, and rolled back when it raises"),
        ("add", "`session.orm` is an ORM session in the same transaction"),
    ],
)
def test_what_a_session_does_not_have_is_answered_with_what_it_does(engine, method, remedy):
    with DbSession(engine) as session, pytest.raises(AttributeError, match=f"no {method}: {remedy}"):
        getattr(session, method)


def test_sql_as_a_str_is_answered_with_text(engine):
    with pytest.raises(ObjectNotExecutableError) as raised, DbSession(engine) as session:
        session.execute("SELECT 1")  # type: ignore[arg-type]

    assert "session.execute(text(" in raised.value.__notes__[0]


def test_the_engine_and_the_handler_must_both_await_or_neither(queue, engine):
    async def handler(_msg, _session):
        """Does not run when called."""

    awaiting = create_async_engine("sqlite+aiosqlite://")
    with pytest.raises(
        TypeError,
        match=r"must be a plain function: .* await it if engine is an AsyncEngine",
    ):
        drain(queue, handler, engine)
    with pytest.raises(TypeError, match="an AsyncEngine is for `async def` handlers"):
        drain(queue, lambda _msg, _session: None, awaiting)


@pytest.mark.parametrize("handler", [lambda _msg: None, lambda _msg, _session, _more: None])
def test_a_handler_that_takes_something_else_is_refused_before_the_first_read(queue, engine, handler):
    queue.enqueue({"n": 1})

    for work in (
        lambda: drain(queue, handler, engine),
        lambda: QueueConsumer(queue).run(handler=handler, engine=engine),
    ):
        with pytest.raises(TypeError, match=r"must be callable as handler\(msg, session\)"):
            work()

    assert queue.backlog_stats().pending == 0


def test_a_class_as_a_codec_is_answered_with_its_instance(valkey_url):
    with pytest.raises(TypeError, match=r"codec must be an object .*: write StandardCodec\(\)"):
        StreamWriter(open_client(valkey_url), "orders", codec=StandardCodec)  # type: ignore[arg-type]


def test_a_plain_client_is_refused_where_calls_are_awaited(valkey_url):
    client: Any = open_client(valkey_url)
    for make in (lambda: AsyncQueue(client, "orders"), lambda: AsyncProducer(client)):
        with pytest.raises(TypeError, match=r"one of redis\.asyncio, as `open_async_client"):
            make()
