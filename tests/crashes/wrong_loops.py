"""Loops with a hole, each of which the explorer has to find, and loops that only its bounds can end."""

from __future__ import annotations

import time

from conquiet import DbSession
from conquiet.payload import encode_payload
from tests.crashes.explorer import Scenario
from tests.crashes.scenarios import five_in_the_outbox
from tests.crashes.site import BLOCK_MS, GROUP, Site


def one_new(site: Site) -> None:
    """One message that nobody has read."""
    site.queue.enqueue({"number": 1})


def ack_before_commit(site: Site) -> None:
    """A crash in between loses the message."""
    [msg] = site.queue.read(BLOCK_MS)
    site.queue.ack(msg)
    with DbSession(site.engine) as session:
        site.handle(msg, session)


def ack_of_a_neighbour(site: Site) -> None:
    """As with two in handlers: the first one is committed, and the other one is acked."""
    site.queue.enqueue({"number": 2})
    first, second = site.queue.read(BLOCK_MS, count=2)
    with DbSession(site.engine) as session:
        site.handle(first, session)
    site.queue.ack(second)
    with DbSession(site.engine) as session:
        site.handle(second, session)
    site.queue.ack(first)


def ack_of_a_batch_before_its_commit(site: Site) -> None:
    """Messages of one transaction, acked as their handler comes to them."""
    site.queue.enqueue({"number": 2})
    with DbSession(site.engine) as session:
        for msg in site.queue.read(BLOCK_MS, count=2):
            site.handle(msg, session)
            site.queue.ack(msg)


def ack_in_finally(site: Site) -> None:
    """A transaction that fails is acked all the same; no crash shows it, since none comes to a `finally`."""
    [msg] = site.queue.read(BLOCK_MS)
    try:
        with DbSession(site.engine) as session:
            site.handle(msg, session)
    finally:
        site.queue.ack(msg)


def ack_before_dead_letter(site: Site) -> None:
    """A crash between the commands of one pipeline loses the message."""
    [msg] = site.queue.read(BLOCK_MS)
    pipeline = site.client.pipeline(transaction=False)
    pipeline.xack(site.stream, GROUP, msg.id)
    pipeline.xadd(site.dead_letters, {"data": encode_payload({"originalMessageId": msg.id})})
    pipeline.execute()


def record_after_commit(site: Site) -> None:
    """A crash between effect and inbox row lets the effect happen again."""
    site.inbox.create_table(site.engine)
    [msg] = site.queue.read(BLOCK_MS)
    with DbSession(site.engine) as session:
        site.handle(msg, session)
    with DbSession(site.engine) as session:
        site.inbox.record(session, msg)
    site.queue.ack(msg)


def remove_before_publish(site: Site) -> None:
    """A crash in between loses the outbox message."""
    with DbSession(site.engine) as session:
        [row] = site.outbox.lock_oldest(session, limit=1)
        site.outbox.remove(session, [row.id])
    site.client.xadd(row.stream, {"data": row.data})


def ack_forever(site: Site) -> None:
    """Passes points without end."""
    while True:
        site.queue.ack_ids(["0-1"])


def hang(site: Site) -> None:
    """Passes one command and then nothing more."""
    site.queue.ack_ids(["0-1"])
    time.sleep(600)


def fail(site: Site) -> None:
    """Is broken itself."""
    raise RuntimeError("a broken scenario")


WRONG_LOOPS = {
    "ack_before_commit": Scenario(prepare=one_new, run=ack_before_commit),
    "ack_of_a_neighbour": Scenario(prepare=one_new, run=ack_of_a_neighbour),
    "ack_of_a_batch_before_its_commit": Scenario(prepare=one_new, run=ack_of_a_batch_before_its_commit),
    "ack_in_finally": Scenario(prepare=one_new, run=ack_in_finally),
    "ack_before_dead_letter": Scenario(
        prepare=one_new, run=ack_before_dead_letter, max_deliveries=1, dead_lettered=1
    ),
    "record_after_commit": Scenario(prepare=one_new, run=record_after_commit, has_inbox=True),
    "remove_before_publish": Scenario(prepare=five_in_the_outbox, run=remove_before_publish, has_outbox=True),
    "ack_forever": Scenario(prepare=one_new, run=ack_forever, max_points=10),
    "hang": Scenario(prepare=one_new, run=hang, timeout_s=2),
    "fail": Scenario(prepare=one_new, run=fail),
}
