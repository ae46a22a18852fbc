"""The scenarios of the MQ: send, consume, retry, dead letter, replay, take-over, on a few messages each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from sqlalchemy import insert

from conquiet import DbSession, DrainLimits, batch_handler
from conquiet.consume import Handler
from conquiet.consume.outcome import Settlement
from conquiet.errors import QueueError
from conquiet.mq import AsyncProducer, ConsumerConfig, MqAdmin, MqMessage, Producer, drain_topic
from conquiet.mq.dead_letters.letters import DeadLetters
from conquiet.queue import open_async_client
from tests.crashes.mq_explorer import MqScenario
from tests.crashes.mq_invariants import Name
from tests.crashes.mq_site import GROUP, HOUR_MS, POLICY, MqSite, effects
from tests.crashes.site import as_handler

_MALFORMED: Name = (None, 0)


def nothing(_site: MqSite) -> None:
    """An empty topic."""


def two_keys(site: MqSite) -> None:
    """Four messages of two keys."""
    site.send(1, 2, key="a")
    site.send(1, 2, key="b")


def one_that_fails_once(site: MqSite) -> None:
    """The first of three messages of a key fails at its first attempt; another key is between them."""
    site.send(1, key="a", fails=1)
    site.send(1, key="b")
    site.send(2, 3, key="a")


def three_delayed(site: MqSite) -> None:
    """Messages for both partitions that are due."""
    producer = Producer(site.client)
    for number, partition in ((1, 0), (2, 1), (3, 0)):
        payload = {"key": "a", "number": number}
        producer.send(site.topic.name, payload, key="a", delay_ms=1, partition=partition)
    time.sleep(0.002)


def four_for_the_dead_letters(site: MqSite) -> None:
    """One that its handler gives up, one that fails for the last time, one that is no message, a good one."""
    site.send(1, dies=True)
    site.send(2, fails=POLICY.max_attempts)
    site.client.xadd(site.topic.keys.stream(0), {"not data": "no message"})
    _read_by_the_dead(site, 3)
    _deliver_again(site, site.entry_ids()[1], deliveries=POLICY.max_attempts - 1)
    site.send(3)


def one_delivered_too_often(site: MqSite) -> None:
    """One message whose handler killed its process at every attempt, and one behind it."""
    site.send(1)
    _read_by_the_dead(site, 1)
    _deliver_again(site, site.entry_ids()[0], deliveries=POLICY.max_attempts)
    site.send(2)


def one_at_its_last_attempt(site: MqSite) -> None:
    """One message that may be handled once more, and one behind it."""
    site.send(1)
    _read_by_the_dead(site, 1)
    _deliver_again(site, site.entry_ids()[0], deliveries=POLICY.max_attempts - 1)
    site.send(2)


def three_dead_letters(site: MqSite) -> None:
    """Three messages that became dead letters; once replayed they succeed."""
    site.send(1, 2, 3, dies=True)
    site.work_rounds(4, owner="dead")


def everything_that_the_dead_leave(site: MqSite) -> None:
    """Two committed and not settled, one that waits and is due, one that waits, one not begun, one new."""
    site.send(1, 2, 3, 4, 5)
    read = _read_by_the_dead(site, 5)
    for number in (1, 2):
        with DbSession(site.engine) as session:
            site.inbox.record(session, read[number - 1])
            session.execute(insert(effects), {"key": "a", "number": number, "attempt": 1})
    _wait_for_retry(site, read[2].id, delay_ms=0)
    _wait_for_retry(site, read[3].id, delay_ms=HOUR_MS + HOUR_MS // 2)
    site.send(6)


def one_key_that_waits(site: MqSite) -> None:
    """Of key a the first message waits for its retry, the second is pending behind it, the third is new."""
    site.send(1, 2, key="a")
    site.send(1, key="b")
    read = _read_by_the_dead(site, 3)
    _wait_for_retry(site, read[0].id, delay_ms=HOUR_MS + HOUR_MS // 2)
    site.send(3, key="a")
    site.send(2, key="b")


def one_key_whose_head_is_settled_by_hand(site: MqSite) -> None:
    """Of key a the first message waits for its retry, until it is settled by hand; others are behind it."""
    site.send(1, 2, key="a")
    read = _read_by_the_dead(site, 2)
    _wait_for_retry(site, read[0].id, delay_ms=HOUR_MS + HOUR_MS // 2)
    site.send(1, key="b", frees=read[0].id)
    site.send(3, key="a")


def one_key_that_is_due(site: MqSite) -> None:
    """As above, but the retry is due: all of it is finished before the worker stops."""
    site.send(1, 2, key="a")
    site.send(1, key="b")
    _wait_for_retry(site, _read_by_the_dead(site, 3)[0].id, delay_ms=0)
    site.send(3, key="a")


def more_than_one_read_may_bring(site: MqSite) -> None:
    """Small and large messages of two keys, one of which fails once: content of some is loaded later."""
    site.send(1, key="a", fails=1, text="x" * 100)
    site.send(1, key="b", text="x" * 2_000)
    site.send(2, 3, key="a", text="x" * 2_000)
    site.send(2, key="b")


def one_that_stops_the_worker(site: MqSite) -> None:
    """The worker is stopped while it handles the first message of a batch."""
    site.send(1, stops=True)
    site.send(2, 3)


def send_three(site: MqSite) -> None:
    """`Producer.send` with dedupe ids, made again after an error as well as after a crash."""
    producer = Producer(site.client)
    for number in (1, 2, 3):
        for _ in range(2):
            with suppress(QueueError):
                payload = {"key": "a", "number": number}
                producer.send(site.topic.name, payload, key="a", dedupe_id=f"order-{number}")
                break


def send_three_awaiting(site: MqSite) -> None:
    """The same by `AsyncProducer.send`, in an event loop."""

    async def send() -> None:
        async with open_async_client(site.url) as client:
            producer = AsyncProducer(client)
            for number in (1, 2, 3):
                for _ in range(2):
                    with suppress(QueueError):
                        payload = {"key": "a", "number": number}
                        await producer.send(site.topic.name, payload, key="a", dedupe_id=f"order-{number}")
                        break

    asyncio.run(send())


def one_in_each_partition(site: MqSite) -> None:
    """Messages that were sent before the group begins."""
    for partition in site.topic.partitions:
        payload = {"key": "before", "number": partition}
        Producer(site.client).send(site.topic.name, payload, key="before", partition=partition)


def create_group_and_send(site: MqSite) -> None:
    """`create_group` at the end, then a message for each partition; again after an error or a crash."""
    _twice(lambda: MqAdmin(site.client).create_group(site.topic, GROUP, "end"))
    send_once_to_each(site)


def for_a_drain_of_the_topic(site: MqSite) -> None:
    """Messages in both partitions: one fails once, one is for the dead letters, one is delayed and due."""
    site.send(1, fails=1)
    site.send(2, 3)
    producer = Producer(site.client)
    for number, more in ((4, {"dies": True}), (5, {})):
        payload = {"key": "b", "number": number, **more}
        producer.send(site.topic.name, payload, key="b", partition=1)
    producer.send(site.topic.name, {"key": "c", "number": 6}, key="c", delay_ms=1, partition=1)
    time.sleep(0.002)


def drain_all(site: MqSite) -> None:
    """`drain_topic` until nothing is left."""
    _drain_topic(site, site.handle, DrainLimits(idle_ms=1, batch_size=2))


def drain_two_at_once(site: MqSite) -> None:
    """The same, two handlers at once, in the order of the keys."""
    _drain_topic(site, site.handle, DrainLimits(idle_ms=1, concurrency=2))


def drain_in_batches(site: MqSite) -> None:
    """The same with a batch handler, three messages in a transaction."""

    def handle_all(messages: list[MqMessage], session: DbSession) -> None:
        for msg in messages:
            site.handle(msg, session)

    _drain_topic(site, batch_handler(handle_all), DrainLimits(idle_ms=1, batch_size=3))


def _drain_topic(site: MqSite, handler: Handler, limits: DrainLimits) -> None:
    # By the clock of the recovery its lease is over, by no other.
    config = ConsumerConfig(consumer_name="worker-1", retry=POLICY, block_ms=1, lease_ttl_ms=HOUR_MS // 2)
    how: dict[str, Any] = {"inbox": site.inbox, "config": config, "until": "empty"}
    engine = site.handler_engine
    drain_topic(site.topic, GROUP, as_handler(handler, engine), engine, limits, **how)


def drain_at_once(site: MqSite) -> None:
    """As `drain_all`, with three messages in handlers, in strict order and with little room."""
    config = ConsumerConfig(
        consumer_name="worker-1",
        retry=POLICY,
        ordering="strict",
        block_ms=1,
        lease_ttl_ms=HOUR_MS // 2,
        max_bytes=1_500,
    )
    how: dict[str, Any] = {"inbox": site.inbox, "config": config, "until": "empty"}
    engine, limits = site.handler_engine, DrainLimits(idle_ms=1, concurrency=3)
    drain_topic(site.topic, GROUP, as_handler(site.handle, engine), engine, limits, **how)


def replay_all(site: MqSite) -> None:
    """`DeadLetters.replay_all`; a second call replays what the first one did not."""
    DeadLetters(site.topic).replay_all()


def work(rounds: int, **how: Any) -> Callable[[MqSite], None]:
    """Some rounds of a worker's loop."""
    return lambda site: site.work_rounds(rounds, **how)


def requeue(site: MqSite) -> None:
    """A failed message is acked and comes back as a copy; every consumer moves copies that are due."""
    site.work_rounds(2, mode="requeue")
    site.move_delayed()
    site.work_rounds(2, mode="requeue")


def names(key: str | None, *numbers: int) -> frozenset[Name]:
    """Messages of one key."""
    return frozenset((key, number) for number in numbers)


MQ_SCENARIOS = {
    "mq_send": MqScenario(
        prepare=nothing, run=send_three, recover=send_three, sent=names("a", 1, 2, 3), is_sent_before=False
    ),
    "mq_send_async": MqScenario(
        prepare=nothing,
        run=send_three_awaiting,
        recover=send_three_awaiting,
        sent=names("a", 1, 2, 3),
        is_sent_before=False,
    ),
    "mq_delayed": MqScenario(prepare=three_delayed, run=MqSite.move_delayed, sent=names("a", 1, 2, 3)),
    "mq_consume": MqScenario(prepare=two_keys, run=work(4), sent=names("a", 1, 2) | names("b", 1, 2)),
    "mq_consume_without_inbox": MqScenario(
        prepare=two_keys, run=work(4), sent=names("a", 1, 2) | names("b", 1, 2), has_inbox=False
    ),
    "mq_stop": MqScenario(prepare=one_that_stops_the_worker, run=work(4), sent=names("a", 1, 2, 3)),
    "mq_retry": MqScenario(
        prepare=one_that_fails_once, run=work(5), sent=names("a", 1, 2, 3) | names("b", 1)
    ),
    "mq_retry_strict": MqScenario(
        prepare=one_that_fails_once,
        run=work(5, ordering="strict"),
        sent=names("a", 1, 2, 3) | names("b", 1),
        is_strict=True,
    ),
    "mq_unloaded": MqScenario(
        prepare=more_than_one_read_may_bring,
        run=work(8, ordering="strict", max_bytes=1_500),
        sent=names("a", 1, 2, 3) | names("b", 1, 2),
        is_strict=True,
    ),
    "mq_concurrent": MqScenario(
        prepare=more_than_one_read_may_bring,
        run=drain_at_once,
        sent=names("a", 1, 2, 3) | names("b", 1, 2),
        is_strict=True,
    ),
    "mq_requeue": MqScenario(
        prepare=one_that_fails_once, run=requeue, sent=names("a", 1, 2, 3) | names("b", 1), max_copies=2
    ),
    # Where the answer of an insert is lost, the copy fails, and a copy of it is added.
    "mq_requeue_twice": MqScenario(
        prepare=one_that_fails_once, run=requeue, sent=names("a", 1, 2, 3) | names("b", 1), max_copies=3
    ),
    "mq_dead_letter": MqScenario(
        prepare=four_for_the_dead_letters,
        run=work(3),
        sent=names("a", 1, 2, 3) | {_MALFORMED},
        dead=names("a", 1, 2) | {_MALFORMED},
    ),
    "mq_poison": MqScenario(
        prepare=one_delivered_too_often, run=work(3), sent=names("a", 1, 2), dead=names("a", 1)
    ),
    "mq_last_attempt": MqScenario(
        prepare=one_at_its_last_attempt, run=work(3), sent=names("a", 1, 2), may_die=names("a", 1)
    ),
    "mq_last_attempt_requeue": MqScenario(
        prepare=one_at_its_last_attempt,
        run=work(3, mode="requeue"),
        sent=names("a", 1, 2),
        may_die=names("a", 1),
        max_copies=2,
    ),
    "mq_create_group": MqScenario(
        prepare=one_in_each_partition,
        run=create_group_and_send,
        recover=create_group_and_send,
        sent=names("after", 0, 1),
        is_sent_before=False,
        skipped=names("before", 0, 1),
    ),
    "mq_drain_topic": MqScenario(
        prepare=for_a_drain_of_the_topic,
        run=drain_all,
        sent=names("a", 1, 2, 3) | names("b", 4, 5) | names("c", 6),
        dead=names("b", 4),
    ),
    "mq_two_at_once": MqScenario(
        prepare=one_that_fails_once, run=drain_two_at_once, sent=names("a", 1, 2, 3) | names("b", 1)
    ),
    "mq_batches": MqScenario(
        prepare=one_that_fails_once, run=drain_in_batches, sent=names("a", 1, 2, 3) | names("b", 1)
    ),
    "mq_replay": MqScenario(
        prepare=three_dead_letters, run=replay_all, recover=replay_all, sent=names("a", 1, 2, 3), max_copies=2
    ),
    "mq_take_over": MqScenario(
        prepare=everything_that_the_dead_leave, run=work(3), sent=names("a", 1, 2, 3, 4, 5, 6)
    ),
    "mq_take_over_waiting_key": MqScenario(
        prepare=one_key_that_waits,
        run=work(3, ordering="strict"),
        sent=names("a", 1, 2, 3) | names("b", 1, 2),
        is_strict=True,
    ),
    "mq_gone_head": MqScenario(
        prepare=one_key_whose_head_is_settled_by_hand,
        run=work(30, ordering="strict", claim_idle_ms=4),
        # Whether the first one is handled, is the hand's doing.
        sent=names("a", 2, 3) | names("b", 1),
        is_strict=True,
    ),
    "mq_take_over_due_key": MqScenario(
        prepare=one_key_that_is_due,
        run=work(4, ordering="strict"),
        sent=names("a", 1, 2, 3) | names("b", 1),
        is_strict=True,
    ),
}
#: The same again with `async def` handlers, where they take other code: not where no handler is called, as
#: with a message that was delivered too often, and not for each way in which a key waits.
MQ_SCENARIOS |= {
    f"{name}_async": replace(MQ_SCENARIOS[name], is_async=True)
    for name in (
        *("mq_consume", "mq_consume_without_inbox", "mq_stop", "mq_retry", "mq_retry_strict"),
        *("mq_concurrent", "mq_dead_letter", "mq_drain_topic", "mq_two_at_once", "mq_batches"),
        *("mq_unloaded", "mq_requeue", "mq_requeue_twice", "mq_last_attempt", "mq_take_over"),
        "mq_take_over_due_key",
    )
}


def _twice(call: Callable[[], object]) -> None:
    """Once more after an error: its answer may be lost."""
    try:
        call()
    except QueueError:
        call()


def send_once_to_each(site: MqSite) -> None:
    for partition in site.topic.partitions:
        payload = {"key": "after", "number": partition}
        how: dict[str, Any] = {"key": "after", "partition": partition, "dedupe_id": f"after-{partition}"}
        _twice(lambda payload=payload, how=how: Producer(site.client).send(site.topic.name, payload, **how))  # type: ignore[misc]


def _an_hour_ago() -> int:
    return time.time_ns() // 1_000_000 - HOUR_MS


def _read_by_the_dead(site: MqSite, count: int) -> list[MqMessage]:
    leased = site.acquire("dead", clock=_an_hour_ago)
    _, batch = leased.settle_and_read([], count)
    return list(batch.messages)


def _wait_for_retry(site: MqSite, entry_id: str, *, delay_ms: int) -> None:
    leased = site.acquire("dead", clock=_an_hour_ago)
    failure = '{"first_delivered_at_ms": 1}'
    leased.settle_and_read([Settlement("retry", entry_id, 1, delay_ms, failure)], 0)


def _deliver_again(site: MqSite, entry_id: str, *, deliveries: int) -> None:
    stream = site.topic.keys.stream(0)
    site.client.xclaim(stream, GROUP, "dead", 0, [entry_id], retrycount=deliveries, justid=True)
