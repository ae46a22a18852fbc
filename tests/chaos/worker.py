"""One worker process of a chaos run; ends at SIGTERM, or with its parent."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import insert

from conquiet import DbSession, Inbox
from conquiet.mq import (
    ConsumerConfig,
    MqMessage,
    PartitionConsumer,
    Retry,
    RetryPolicy,
    Topics,
)
from conquiet.queue import open_client
from tests.chaos.plan import GROUP, LEASE_TTL_MS, TOPIC, WorkerOrder, effects, open_database, temper_of

#: The line that the figures count.
SKIPPED = "the inbox has"

# Nobody asks for the row's id: without RETURNING the insert costs less.
_insert_effect = insert(effects).inline()

_log = logging.getLogger("chaos")


class PlannedError(Exception):
    """The failure of a handler that the plan wants."""


class TellingInbox(Inbox):
    """An inbox that logs what it refuses: each is an effect that would have happened twice."""

    def record(self, session: DbSession, **message: Any) -> str | None:
        """As the inbox does it."""
        delivery = super().record(session, **message)
        if delivery is None:
            _log.info("%s %s of %s", SKIPPED, message["entry_id"], message["stream"])
        return delivery


def handler_of(seed: int) -> Callable[[MqMessage, DbSession], Retry | None]:
    """The handler: one effect; what else happens is up to the message's temper."""

    def handle(msg: MqMessage, session: DbSession) -> Retry | None:
        key, number = msg.payload["key"], msg.payload["number"]
        temper = temper_of(seed, key, number) if msg.attempt == 1 else "calm"
        if temper == "raises_before":
            raise PlannedError
        row = {"key": key, "number": number, "entry_id": msg.id, "attempt": msg.attempt}
        session.execute(_insert_effect, row)
        if temper == "raises_after":
            raise PlannedError
        if temper == "slow":
            time.sleep(0.005)
        if temper == "long":
            time.sleep(LEASE_TTL_MS / 1000 * 1.3)
        return Retry(delay_ms=30) if temper == "asks_for_retry" else None

    return handle


def work(order: WorkerOrder) -> None:
    """Consume until SIGTERM."""
    client = open_client(order.url, block_ms=1_000)
    consumer = PartitionConsumer(
        _eventually_open(client),
        GROUP,
        handler_of(order.seed),
        open_database(order.database),
        inbox=TellingInbox(),
        config=ConsumerConfig(
            consumer_name=order.name,
            lease_ttl_ms=LEASE_TTL_MS,
            # Every worker that dies counts as an attempt at all that it had read.
            retry=RetryPolicy(max_attempts=1_000, base_delay_ms=20, max_delay_ms=300),
            ordering="strict",
            block_ms=500,
        ),
    )
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    consumer.run()


def _eventually_open(client):
    # The server may be away just now: the consumer bears that by itself, opening the topic does not.
    while True:
        try:
            return Topics(client).open(TOPIC)
        except Exception as error:
            _log.warning("the topic cannot be opened yet: %s", error)
            time.sleep(0.1)


def _end_with_parent() -> None:
    # Not sys.stdin, whose lock a thread that waits in it keeps from the interpreter's end.
    while os.read(0, 1):
        pass
    os._exit(1)


class _WithoutPlannedTraces(logging.Formatter):
    def formatException(self, info) -> str:
        return repr(info[1]) if isinstance(info[1], PlannedError) else super().formatException(info)


if __name__ == "__main__":
    log = logging.StreamHandler()
    log.setFormatter(_WithoutPlannedTraces("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[log])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    work(WorkerOrder.decode(sys.argv[1]))
