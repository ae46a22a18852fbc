"""conquiet's MQ: `enqueue N`, or `work` with a transaction and an inbox row for each message."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from sqlalchemy import create_engine, text

from benchmarks.peers.systems import effects
from conquiet import DbSession, Inbox
from conquiet.mq import ConsumerConfig, PartitionConsumer, Producer, Topics
from conquiet.queue import open_client


def book(message: Any, session: DbSession) -> None:
    """One message, in the transaction of its inbox row."""
    time.sleep(0.01)
    session.execute(text("INSERT INTO effects VALUES (:number)"), message.payload)
    time.sleep(0.01)


def count(message: Any) -> None:
    """One message without a database."""
    effects.do(message.payload["number"])


def work() -> None:
    """Consume until SIGTERM."""
    topic = Topics(open_client(effects.REDIS_URL)).create("peers", partitions=4)
    config = ConsumerConfig()
    if os.environ.get("PEERS_TIMES"):
        consumer = PartitionConsumer(topic, "billing", count, config=config)
    else:
        engine = create_engine(f"sqlite:///{os.environ['PEERS_DATABASE']}?timeout=30")
        consumer = PartitionConsumer(topic, "billing", book, engine, inbox=Inbox(), config=config)
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    consumer.run()


if __name__ == "__main__":
    if sys.argv[1] == "work":
        work()
    else:
        client = open_client(effects.REDIS_URL)
        Topics(client).create("peers", partitions=4)
        Producer(client).send_many("peers", [{"number": number} for number in range(int(sys.argv[1]))])
