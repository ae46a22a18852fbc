"""One worker process of a chaos run; ends at SIGTERM, or with its parent."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence

from sqlalchemy import insert

from conquiet import DbSession, Inbox, batch_handler
from conquiet.consume.batch_handler import BatchHandler
from conquiet.consume.limits import DEFAULT_BATCH_SIZE
from conquiet.db.inbox import Identified
from conquiet.errors import ConquietError
from conquiet.mq import (
    ConsumerConfig,
    MqMessage,
    PartitionConsumer,
    Retry,
    RetryPolicy,
    Topics,
)
from conquiet.queue import open_client
from tests.chaos.plan import (
    BATCH_SIZE,
    GROUP,
    INBOX_LOCK_S,
    LEASE_TTL_MS,
    MAX_ATTEMPTS,
    TOPIC,
    WorkerOrder,
    effects,
    open_database,
    temper_of,
)

#: In the lines that the figures count.
SKIPPED = "the inbox has"
ROW_LOCKED = "inbox row locked, entry"
UNAVAILABLE = "database unavailable, entry"

# Nobody asks for the row's id: without RETURNING the insert costs less.
_insert_effect = insert(effects).inline()

_log = logging.getLogger("chaos")


class PlannedError(Exception):
    """The failure of a handler that the plan wants."""


class TellingInbox(Inbox):
    """An inbox that logs what it refuses: each is an effect that would have happened twice."""

    def record(self, session: DbSession, msg: Identified) -> str | None:
        """As the inbox does it."""
        delivery = super().record(session, msg)
        if delivery is None:
            _log.info("%s %s of %s", SKIPPED, msg.id, msg.stream)
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


def batches_of(handle: Callable[[MqMessage, DbSession], Retry | None]) -> BatchHandler:
    """The same for many messages in one transaction; the first answer is that of all of them."""

    def handle_all(messages: Sequence[MqMessage], session: DbSession) -> Retry | None:
        return next((answer for msg in messages if (answer := handle(msg, session)) is not None), None)

    return batch_handler(handle_all)


def work(order: WorkerOrder) -> None:
    """Consume until SIGTERM."""
    consumer = _eventually_start(order)
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    consumer.run()


def _eventually_start(order: WorkerOrder) -> PartitionConsumer:
    # Server or database may be unavailable just now: a consumer bears that by itself, its start does not.
    client, engine = open_client(order.url, block_ms=1_000), open_database(order.database, order.name)
    config = ConsumerConfig(
        consumer_name=order.name,
        lease_ttl_ms=LEASE_TTL_MS,
        retry=RetryPolicy(max_attempts=MAX_ATTEMPTS, base_delay_ms=20, max_delay_ms=300),
        ordering="strict",
        block_ms=500,
        concurrency=order.concurrency,
        batch_size=BATCH_SIZE if order.in_batches else DEFAULT_BATCH_SIZE,
    )
    inbox, one = TellingInbox(lock_timeout_s=INBOX_LOCK_S), handler_of(order.seed)
    handler = batches_of(one) if order.in_batches else one
    _log.info("%s at once, %s", order.concurrency, "in batches" if order.in_batches else "one by one")
    while True:
        try:
            topic = Topics(client).open(TOPIC)
            return PartitionConsumer(topic, GROUP, handler, engine, inbox=inbox, config=config)
        except ConquietError as error:
            _log.warning("the consumer cannot be started yet: %s", error)
            time.sleep(0.1)


def end_with_parent() -> None:
    """For a thread: end this process when the pipe at its stdin ends."""
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
    threading.Thread(target=end_with_parent, daemon=True).start()
    work(WorkerOrder.decode(sys.argv[1]))
