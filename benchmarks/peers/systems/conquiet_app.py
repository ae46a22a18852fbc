"""conquiet without tasks: `KIND N` sends, `KIND work` consumes.

A kind is drain, mq or batches-100, each with an inbox, or plain and mq-plain, without.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from typing import Any

from sqlalchemy import Engine, create_engine, event, text

from benchmarks.peers.systems import effects
from conquiet import (
    DbSession,
    DrainLimits,
    Inbox,
    QueueConfig,
    QueueMessage,
    RedisStreamsQueue,
    batch_handler,
    drain,
)
from conquiet.errors import ConsumerBusyError
from conquiet.mq import ConsumerConfig, PartitionConsumer, Producer, Topics
from conquiet.queue import open_client

_INSERT = text("INSERT INTO effects VALUES (:number)")
#: Of a drain whose transactions are of one message each: how many it reads at once.
_READ_SIZE = 100
#: On two cores and in PostgreSQL, whose commits wait for its disk: so many messages at once in each process.
_CONCURRENCY = 4 if os.environ.get("PEERS_BEST") and effects.DATABASE_URL.startswith("postgres") else 1


def book(message: Any, session: DbSession) -> None:
    """One message, in the transaction of its inbox row."""
    effects.work()
    session.execute(_INSERT, message.payload)
    effects.work()
    effects.done()


@batch_handler
def book_all(messages: list[QueueMessage], session: DbSession) -> None:
    """A batch, in the transaction of its inbox rows."""
    for _ in messages:
        effects.work()
    session.execute(_INSERT, [message.payload for message in messages])
    for _ in messages:
        effects.work()
        effects.done()


def count(_message: Any, _session: DbSession | None = None) -> None:
    """One message without a database."""
    effects.done()


def engine() -> Engine:
    """On the database of the effects; without one on a file of its own, where nothing is written."""
    url = effects.DATABASE_URL or "sqlite:///nothing.db"
    if not url.startswith("sqlite"):
        return create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    made = create_engine(f"{url}?timeout=30")
    event.listen(made, "connect", lambda opened, _: opened.execute("PRAGMA synchronous = NORMAL"))
    return made


def consume(kind: str) -> None:
    """Consume a topic until SIGTERM."""
    topic = Topics(open_client(effects.REDIS_URL)).create("peers", partitions=4)
    config = ConsumerConfig(concurrency=_CONCURRENCY, order_by=False if _CONCURRENCY > 1 else None)
    if effects.DATABASE_URL:
        inbox = Inbox() if kind == "mq" else None
        consumer = PartitionConsumer(topic, "billing", book, engine(), inbox=inbox, config=config)
    else:
        consumer = PartitionConsumer(topic, "billing", count, config=config)
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    consumer.run()


def _queue() -> RedisStreamsQueue:
    config = QueueConfig("peers", "billing", f"worker-{os.environ.get('PEERS_WORKER', '0')}")
    return RedisStreamsQueue.from_url(effects.REDIS_URL, config)


def drain_for_ever(kind: str) -> None:
    """Drain the stream again and again, as a task that is scheduled would."""
    inbox = Inbox() if effects.DATABASE_URL and kind != "plain" else None
    limits = DrainLimits(max_messages=None, idle_ms=500, batch_size=_READ_SIZE)
    handler: Any = book if effects.DATABASE_URL else count
    if kind.startswith("batches"):
        handler, limits = book_all, replace(limits, batch_size=int(kind.removeprefix("batches-")))
    elif _CONCURRENCY > 1:
        limits = replace(limits, concurrency=_CONCURRENCY, order_by=False)
    database = engine()
    with _queue() as queue:
        while True:
            try:
                drain(queue, handler, database, limits, inbox=inbox)
            except ConsumerBusyError:
                # The one that was killed counts as alive until its heartbeat is old.
                time.sleep(0.2)


if __name__ == "__main__":
    kind, what = sys.argv[1:]
    if what == "work" and kind.startswith("mq"):
        consume(kind)
    elif what == "work":
        drain_for_ever(kind)
    elif kind.startswith("mq"):
        client = open_client(effects.REDIS_URL)
        Topics(client).create("peers", partitions=4)
        Producer(client).send_many("peers", [{"number": number} for number in range(int(what))])
    else:
        with _queue() as opened:
            opened.enqueue_many({"number": number} for number in range(int(what)))
