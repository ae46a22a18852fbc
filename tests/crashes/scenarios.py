"""The scenarios: everything that conquiet does between a read and an ack, each on a handful of messages."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from opentelemetry.sdk.trace import TracerProvider

from conquiet import (
    DbSession,
    DrainError,
    DrainLimits,
    OutboxRelay,
    QueueConsumer,
    QueueMessage,
    batch_handler,
    drain,
    drain_stale,
    tracing,
)
from conquiet.consume import Handler
from conquiet.mq import DeadLetters, Topics
from tests.crashes.explorer import Scenario
from tests.crashes.site import BLOCK_MS, GROUP, WORKER, Site, as_handler

_HOUR_MS = 3_600_000
_MAX_DELIVERIES = 3
_EARLIER_TRY = "task-try-1"


class PlannedError(Exception):
    """The failure of a handler that a scenario wants."""


def three_new(site: Site) -> None:
    """Three messages that nobody has read."""
    _enqueue(site, 3)


def one_own_and_four_new(site: Site) -> None:
    """Five messages; the consumer's own name has read the first one, and died."""
    _enqueue(site, 5)
    site.queue.read(BLOCK_MS)


def one_own_committed_and_four_new(site: Site) -> None:
    """As above, but the dead one had come as far as the commit."""
    _enqueue(site, 5)
    _commit_without_ack(site, site.queue.read(BLOCK_MS))


def four_stale(site: Site) -> None:
    """Four messages of a dead consumer; one of them and the malformed one were delivered too often."""
    _enqueue(site, 3)
    malformed = site.client.xadd(site.stream, {"not data": "no message"})
    ids = site.entry_ids()
    site.client.xreadgroup(GROUP, "dead", {site.stream: ">"})
    _make_stale(site, ids)
    _make_stale(site, [ids[1], malformed], deliveries=_MAX_DELIVERIES)


def three_stale_of_which_two_committed(site: Site) -> None:
    """Three messages of a dead consumer that had committed two and acked none."""
    three_new(site)
    read = site.queue_of("dead").read(BLOCK_MS, count=3)
    _commit_without_ack(site, read[:2])
    _make_stale(site, [msg.id for msg in read])


def three_stale_of_which_two_committed_are_over_max_deliveries(site: Site) -> None:
    """As above, and the two that are committed were delivered too often."""
    three_stale_of_which_two_committed(site)
    _make_stale(site, site.entry_ids()[:2], deliveries=_MAX_DELIVERIES)


def two_of_an_earlier_try_and_two_new(site: Site) -> None:
    """Four messages; an earlier try of the same task has read two, committed the first one, and died."""
    _enqueue(site, 4)
    read = site.queue_of(_EARLIER_TRY).read(BLOCK_MS, count=2)
    _commit_without_ack(site, read[:1])


def five_in_the_outbox(site: Site) -> None:
    """Six messages handled: five committed, the last rolled back with its outbox row."""
    _enqueue(site, 6)
    with suppress(DrainError):
        drain(site.queue, _failing_at(6, site), site.engine, DrainLimits(max_messages=6, on_error="continue"))


def three_dead_letters(site: Site) -> None:
    """Three messages that were delivered too often."""
    _enqueue(site, 3)
    site.queue.read(BLOCK_MS, count=3)
    drain(site.queue, site.handle, site.engine, DrainLimits(max_deliveries=1, idle_ms=BLOCK_MS))


def run_until_the_third(site: Site) -> None:
    """`QueueConsumer.run`, stopped by the handler of the third message."""
    consumer = QueueConsumer(site.queue)

    def handle(msg: QueueMessage, session: DbSession) -> None:
        site.handle(msg, session)
        if msg.payload["number"] == 3:
            consumer.stop()

    consumer.run(
        handler=as_handler(handle, site.handler_engine), engine=site.handler_engine, inbox=site.inbox
    )


def drain_by_twos(site: Site) -> None:
    """`drain`, two messages at a time until there are no more, so that acks travel with reads."""
    limits = DrainLimits(max_messages=10, batch_size=2, idle_ms=BLOCK_MS)
    _drain(site, site.handle, limits, inbox=site.inbox)


def drain_four_at_once(site: Site) -> None:
    """`drain` with four handlers at once, in the order of two keys."""
    limits = DrainLimits(
        max_messages=10, concurrency=4, order_by=lambda msg: msg.payload["number"] % 2, idle_ms=BLOCK_MS
    )
    _drain(site, site.handle, limits, inbox=site.inbox)


def drain_four_and_continue(site: Site) -> None:
    """As above, and the third message fails."""
    limits = DrainLimits(max_messages=5, concurrency=4, order_by=False, idle_ms=BLOCK_MS)
    with suppress(DrainError):
        _drain(site, _failing_at(3, site), limits, inbox=site.inbox)


def drain_in_batches(site: Site) -> None:
    """`drain` with a batch handler, three messages in a transaction."""
    _drain_in_batches(site, site.handle)


def drain_a_failing_batch(site: Site) -> None:
    """As above; the third message fails its batch, and then itself alone."""
    with suppress(DrainError):
        _drain_in_batches(site, _failing_at(3, site))


def _drain_in_batches(site: Site, handle: Handler) -> None:
    def handle_all(messages: list[QueueMessage], session: DbSession) -> None:
        for msg in messages:
            handle(msg, session)

    limits = DrainLimits(max_messages=10, batch_size=3, idle_ms=BLOCK_MS)
    engine = site.handler_engine
    drain(site.queue, batch_handler(as_handler(handle_all, engine)), engine, limits, inbox=site.inbox)


def drain_traced(site: Site) -> None:
    """As above with traces: each ack is then a call of its own, before the next read."""
    tracing.enable(TracerProvider())
    try:
        drain_by_twos(site)
    finally:
        tracing.disable()


def drain_and_take_back(site: Site) -> None:
    """`drain` of a task that is tried again: first what its earlier try left."""
    limits = DrainLimits(max_messages=10, batch_size=2, idle_ms=BLOCK_MS)
    _drain(site, site.handle, limits, inbox=site.inbox, take_over_from=[_EARLIER_TRY])


def drain_and_renew(site: Site) -> None:
    """`drain` where messages go stale so quickly that it renews what it holds."""

    def handle(msg: QueueMessage, session: DbSession) -> None:
        site.handle(msg, session)
        time.sleep(0.002)

    engine = site.handler_engine
    drain(
        site.queue_of(WORKER, claim_idle_ms=1),
        as_handler(handle, engine),
        engine,
        DrainLimits(max_messages=3),
    )


def drain_and_raise(site: Site) -> None:
    """`drain` whose third message fails: the first two are acked, the rest is handed back."""
    with suppress(PlannedError):
        _drain(site, _failing_at(3, site), DrainLimits(max_messages=5, on_error="raise"))


def drain_and_continue(site: Site) -> None:
    """`drain` whose third message fails while the others go on."""
    with suppress(DrainError):
        _drain(site, _failing_at(3, site), DrainLimits(max_messages=5, on_error="continue"))


def drain_the_stale(site: Site) -> None:
    """`drain_stale`, two messages at a time, with dead letters for what was delivered too often."""
    limits = DrainLimits(max_messages=10, batch_size=2, max_deliveries=_MAX_DELIVERIES)
    engine = site.handler_engine
    drain_stale(site.queue, as_handler(site.handle, engine), engine, limits, inbox=site.inbox)


def replay_letters(site: Site) -> None:
    """`DeadLetters.replay_all` of a plain stream; a second call replays what the first one did not."""
    DeadLetters(Topics(site.client).open(site.stream)).replay_all()


def relay_by_twos(site: Site) -> None:
    """`OutboxRelay.relay`, two rows at a time, until the outbox is empty."""
    relay = OutboxRelay(site.engine, site.client, site.outbox)
    while relay.relay(limit=2):
        pass


SCENARIOS = {
    "run": Scenario(prepare=three_new, run=run_until_the_third),
    "run_inbox": Scenario(prepare=three_new, run=run_until_the_third, has_inbox=True),
    "drain": Scenario(prepare=one_own_and_four_new, run=drain_by_twos),
    "drain_inbox": Scenario(prepare=one_own_committed_and_four_new, run=drain_by_twos, has_inbox=True),
    "drain_concurrent": Scenario(prepare=one_own_and_four_new, run=drain_four_at_once),
    "drain_concurrent_inbox": Scenario(
        prepare=one_own_committed_and_four_new, run=drain_four_at_once, has_inbox=True
    ),
    "drain_concurrent_continue": Scenario(
        prepare=one_own_and_four_new, run=drain_four_and_continue, has_inbox=True
    ),
    "drain_batches": Scenario(prepare=one_own_and_four_new, run=drain_in_batches),
    "drain_batches_inbox": Scenario(
        prepare=one_own_committed_and_four_new, run=drain_in_batches, has_inbox=True
    ),
    "drain_failing_batch": Scenario(
        prepare=one_own_committed_and_four_new, run=drain_a_failing_batch, has_inbox=True
    ),
    "drain_traced": Scenario(prepare=one_own_committed_and_four_new, run=drain_traced, has_inbox=True),
    "drain_take_back": Scenario(
        prepare=two_of_an_earlier_try_and_two_new, run=drain_and_take_back, has_inbox=True
    ),
    "drain_renew": Scenario(prepare=three_new, run=drain_and_renew),
    "drain_handler_fails": Scenario(prepare=one_own_and_four_new, run=drain_and_raise),
    "drain_continue": Scenario(prepare=one_own_and_four_new, run=drain_and_continue),
    "drain_stale": Scenario(
        prepare=four_stale, run=drain_the_stale, max_deliveries=_MAX_DELIVERIES, dead_lettered=2
    ),
    "drain_stale_inbox": Scenario(
        prepare=three_stale_of_which_two_committed, run=drain_the_stale, has_inbox=True
    ),
    "drain_stale_over_max_deliveries": Scenario(
        prepare=three_stale_of_which_two_committed_are_over_max_deliveries,
        run=drain_the_stale,
        has_inbox=True,
        max_deliveries=_MAX_DELIVERIES,
    ),
    "replay": Scenario(prepare=three_dead_letters, run=replay_letters, run_again=replay_letters),
    "outbox_relay": Scenario(prepare=five_in_the_outbox, run=relay_by_twos, has_outbox=True),
    "handler_with_outbox": Scenario(prepare=three_new, run=drain_by_twos, has_outbox=True),
}


#: The same again with `async def` handlers, where they take other code: not for a batch without an inbox.
ASYNC_SCENARIOS = {
    f"{name}_async": replace(SCENARIOS[name], is_async=True)
    for name in (
        *("run", "run_inbox", "drain", "drain_inbox", "drain_concurrent", "drain_concurrent_inbox"),
        *("drain_concurrent_continue", "drain_batches_inbox", "drain_failing_batch", "drain_handler_fails"),
        *("drain_continue", "drain_stale_inbox", "drain_stale_over_max_deliveries", "handler_with_outbox"),
        *("drain_traced", "drain_take_back", "drain_renew", "drain_stale"),
    )
}
SCENARIOS |= ASYNC_SCENARIOS


def _drain(site: Site, handle: Handler, limits: DrainLimits, **options: Any) -> None:
    drain(site.queue, as_handler(handle, site.handler_engine), site.handler_engine, limits, **options)


def _enqueue(site: Site, messages: int) -> None:
    site.queue.enqueue_many([{"number": number} for number in range(1, messages + 1)])


def _failing_at(number: int, site: Site) -> Handler:
    def handle(msg: QueueMessage, session: DbSession) -> None:
        site.handle(msg, session)
        if msg.payload["number"] == number:
            raise PlannedError

    return handle


def _commit_without_ack(site: Site, messages: list[QueueMessage]) -> None:
    site.inbox.create_table(site.engine)
    for msg in messages:
        with DbSession(site.engine) as session:
            site.inbox.record(session, msg)
            site.handle(msg, session)


def _make_stale(site: Site, entry_ids: list[str], *, deliveries: int = 1) -> None:
    site.client.xclaim(
        site.stream, GROUP, "dead", 0, entry_ids, idle=_HOUR_MS, retrycount=deliveries, justid=True
    )
