"""conquiet without tasks: `drain N` and `N` send, `drain work` and `work` consume, with an inbox row each."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from sqlalchemy import Engine, create_engine, event, text

from benchmarks.peers.systems import effects
from conquiet import DbSession, DrainLimits, Inbox, QueueConfig, RedisStreamsQueue, drain
from conquiet.errors import ConsumerBusyError
from conquiet.mq import ConsumerConfig, PartitionConsumer, Producer, Topics
from conquiet.queue import open_client

_INSERT = text("INSERT INTO effects VALUES (:number)")


def book(message: Any, session: DbSession) -> None:
    """One message, in the transaction of its inbox row."""
    effects.work()
    session.execute(_INSERT, message.payload)
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


def consume() -> None:
    """Consume a topic until SIGTERM."""
    topic = Topics(open_client(effects.REDIS_URL)).create("peers", partitions=4)
    config = ConsumerConfig()
    if effects.DATABASE_URL:
        consumer = PartitionConsumer(topic, "billing", book, engine(), inbox=Inbox(), config=config)
    else:
        consumer = PartitionConsumer(topic, "billing", count, config=config)
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    consumer.run()


def _queue() -> RedisStreamsQueue:
    config = QueueConfig("peers", "billing", f"worker-{os.environ.get('PEERS_WORKER', '0')}")
    return RedisStreamsQueue.from_url(effects.REDIS_URL, config)


def drain_for_ever() -> None:
    """Drain the stream again and again, as a task that is scheduled would."""
    handler, inbox = (book, Inbox()) if effects.DATABASE_URL else (count, None)
    database = engine()
    with _queue() as queue:
        while True:
            try:
                drain(queue, handler, database, DrainLimits(max_messages=None, idle_ms=500), inbox=inbox)
            except ConsumerBusyError:
                # The one that was killed counts as alive until its heartbeat is old.
                time.sleep(0.2)


if __name__ == "__main__":
    kind, what = sys.argv[1:] if len(sys.argv) > 2 else ("mq", sys.argv[1])
    if what == "work":
        (drain_for_ever if kind == "drain" else consume)()
    elif kind == "drain":
        with _queue() as opened:
            opened.enqueue_many({"number": number} for number in range(int(what)))
    else:
        client = open_client(effects.REDIS_URL)
        Topics(client).create("peers", partitions=4)
        Producer(client).send_many("peers", [{"number": number} for number in range(int(what))])
