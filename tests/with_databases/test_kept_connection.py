"""The connection that `drain` and `run` keep from message to message, and when they let go of it."""

from __future__ import annotations

from collections import Counter

import pytest
from sqlalchemy import Engine, event

from conquiet import (
    DbSession,
    DrainError,
    DrainLimits,
    Inbox,
    QueueConsumer,
    QueueMessage,
    RedisStreamsQueue,
    drain,
)
from tests.eventually import eventually
from tests.services import checked_out
from tests.with_databases.conftest import OpenDb, only_on
from tests.with_databases.consuming import pending
from tests.with_databases.servers import kill, number_of
from tests.with_databases.tables import notes, write, write_id
from tests.with_databases.threads import Running


@pytest.fixture
def pool_events(db: Engine) -> Counter[str]:
    """How often the pool of `db` connected, and handed out and took back a connection."""
    counts: Counter[str] = Counter()
    for name in ("connect", "checkout", "checkin"):
        event.listen(db, name, lambda *_, name=name: counts.update([name]))
    return counts


def write_name(msg: QueueMessage, session: DbSession) -> None:
    write(session, msg.payload["name"])


def fail_at_bad(msg: QueueMessage, session: DbSession) -> None:
    write_name(msg, session)
    if msg.payload["name"] == "bad":
        raise ValueError("bad")


def named(*names: str) -> list[dict[str, str]]:
    return [{"name": name} for name in names]


def drain_and_kill_after_the_first(
    queue: RedisStreamsQueue, db: Engine, killer: Engine, numbers: list[int]
) -> None:
    """Each message that is handled leaves the number of its connection in `numbers`."""
    killed: list[int] = []

    def handler(msg: QueueMessage, session: DbSession) -> None:
        numbers.append(number_of(session.connection))
        write_name(msg, session)

    def kill_between_messages() -> bool:
        if numbers and not killed:
            killed.append(numbers[0])
            kill(killer, numbers[0])
        return False

    drain(
        queue,
        handler,
        db,
        DrainLimits(max_messages=4, on_error="continue", should_stop=kill_between_messages),
    )


def test_drain_uses_one_connection_for_many_messages(
    db: Engine, pool_events: Counter[str], valkey_queue: RedisStreamsQueue
):
    valkey_queue.enqueue_many([{}] * 20)

    drain(valkey_queue, write_id, db, DrainLimits(max_messages=20))

    assert pool_events == {"connect": 1, "checkout": 1, "checkin": 1}


def test_each_message_has_its_own_transaction_on_the_kept_connection(
    db: Engine, valkey_queue: RedisStreamsQueue
):
    seen = []

    def handler(msg: QueueMessage, session: DbSession) -> None:
        seen.append(len(notes(db)))
        write_id(msg, session)

    valkey_queue.enqueue_many([{}] * 3)
    drain(valkey_queue, handler, db, DrainLimits(max_messages=3))

    assert seen == [0, 1, 2]


def test_run_uses_one_connection_for_many_messages(
    db: Engine, pool_events: Counter[str], valkey_queue: RedisStreamsQueue
):
    consumer = QueueConsumer(valkey_queue)

    def stop_at_last(msg: QueueMessage, session: DbSession) -> None:
        write_name(msg, session)
        if msg.payload["name"] == "last":
            consumer.stop()

    valkey_queue.enqueue_many(named("first", "second", "last"))
    consumer.run(handler=stop_at_last, engine=db)

    assert pool_events == {"connect": 1, "checkout": 1, "checkin": 1}


def test_connection_is_given_back_at_the_end_of_a_drain(db: Engine, valkey_queue: RedisStreamsQueue):
    valkey_queue.enqueue({})

    drain(valkey_queue, write_id, db, DrainLimits(max_messages=1), inbox=Inbox())

    assert checked_out(db) == 0


def test_connection_is_given_back_while_a_consumer_waits(
    db: Engine, pool_events: Counter[str], valkey_queue: RedisStreamsQueue
):
    consumer = QueueConsumer(valkey_queue)
    valkey_queue.enqueue({})

    running = Running(lambda: consumer.run(handler=write_id, engine=db))
    given_back = eventually(lambda: pool_events["checkin"])
    consumer.stop()
    running.result()

    assert given_back == 1


def test_failing_message_gives_the_connection_back(
    db: Engine, pool_events: Counter[str], valkey_queue: RedisStreamsQueue
):
    valkey_queue.enqueue_many(named("bad", "good"))

    with pytest.raises(DrainError):
        drain(valkey_queue, fail_at_bad, db, DrainLimits(max_messages=2, on_error="continue"))

    assert pool_events == {"connect": 1, "checkout": 2, "checkin": 2}


def test_message_after_a_failing_one_is_handled(db: Engine, valkey_queue: RedisStreamsQueue):
    valkey_queue.enqueue_many(named("first", "bad", "last"))

    with pytest.raises(DrainError) as raised:
        drain(valkey_queue, fail_at_bad, db, DrainLimits(max_messages=3, on_error="continue"))

    assert (raised.value.report.handled, raised.value.report.failed) == (2, 1)
    assert (pending(valkey_queue), notes(db)) == (1, ["first", "last"])


@only_on("postgres", "mariadb")
def test_message_stays_pending_when_the_connection_died_before_it(
    db: Engine, open_db: OpenDb, valkey_queue: RedisStreamsQueue
):
    ids = valkey_queue.enqueue_many(named("first", "second", "third", "fourth"))

    with pytest.raises(DrainError) as raised:
        drain_and_kill_after_the_first(valkey_queue, db, open_db(), [])

    assert [failure.id for failure in raised.value.failures] == [ids[1]]
    assert (pending(valkey_queue), notes(db)) == (1, ["first", "fourth", "third"])


@only_on("postgres", "mariadb")
def test_messages_after_a_dead_connection_share_a_new_one(
    db: Engine, open_db: OpenDb, valkey_queue: RedisStreamsQueue
):
    numbers: list[int] = []
    valkey_queue.enqueue_many(named("first", "second", "third", "fourth"))

    with pytest.raises(DrainError):
        drain_and_kill_after_the_first(valkey_queue, db, open_db(), numbers)
    first, third, fourth = numbers

    assert first != third == fourth
