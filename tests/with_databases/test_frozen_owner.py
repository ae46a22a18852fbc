"""A worker that is frozen between its inbox row and its commit does not block its successor in silence."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from sqlalchemy import Engine, text

from conquiet import DbSession, DrainLimits, Inbox, QueueMessage, drain_stale
from conquiet.db.inbox import Identified
from conquiet.errors import DatabaseUnavailableError, InboxRowLockedError
from conquiet.mq import MqMessage, Producer, RetryPolicy, Topic, Topics
from conquiet.mq.envelope import Envelope
from conquiet.operations import database_facts
from conquiet.operations.database import check_database
from tests.eventually import eventually
from tests.services import Client
from tests.with_databases.conftest import only_on
from tests.with_databases.servers import is_mariadb
from tests.with_databases.tables import notes, write, write_id
from tests.with_redis.mq.consuming import GROUP, Consumers, dead_letters, pending, quick, wait_until_finished

pytestmark = only_on("postgres", "mariadb")


@contextmanager
def frozen(db: Engine, msg: Identified) -> Iterator[None]:
    """A worker that has written the inbox row and does not go on; in the end its session ends."""
    Inbox().create_table(db)
    try:
        with DbSession(db) as session:
            assert Inbox().record(session, msg)
            yield
            raise _KilledError
    except _KilledError:
        pass


class _KilledError(Exception):
    pass


def own_setting(db: Engine) -> str:
    name = "SELECT @@innodb_lock_wait_timeout" if is_mariadb(db) else "SHOW lock_timeout"
    with db.connect() as connection:
        return str(connection.scalar(text(name)))


def test_a_drain_handles_the_others_and_ends_with_an_error_that_names_the_message(db, open_db, open_queue):
    queue = open_queue("frozen")
    first, second = queue.enqueue_many([{}, {}])
    msg, _ = queue.read(50, 2)
    successor, limits = open_queue("successor"), DrainLimits(idle_ms=50, max_deliveries=2)
    inbox = Inbox(lock_timeout_s=1)

    with frozen(open_db(), msg):
        for _ in range(2):
            with pytest.raises(InboxRowLockedError, match=first):
                drain_stale(successor, write_id, db, limits, min_idle_ms=0, inbox=inbox)
        assert notes(db) == [second]
    report = drain_stale(successor, write_id, db, limits, min_idle_ms=0, inbox=inbox)

    assert (report.handled, notes(db)) == (1, sorted([first, second]))


def read_by_a_frozen_worker(valkey: Client, count: int) -> tuple[Topic, list[str], MqMessage]:
    """A topic with so many messages, of which the first is pending at a worker."""
    topic = Topics(valkey).create(f"orders-{uuid.uuid4().hex[:10]}")
    stream = topic.keys.stream(0)
    ids = Producer(valkey).send_many(topic.name, [{"n": n} for n in range(count)])
    valkey.xgroup_create(stream, GROUP, "0")
    valkey.xreadgroup(GROUP, "frozen", {stream: ">"}, count=1)
    ((_, fields),) = valkey.xrange(stream, ids[0], ids[0])
    envelope = Envelope.of(json.loads(fields[b"data"]), topic=topic.name, partition=0)
    msg = MqMessage(
        topic=topic.name,
        group=GROUP,
        partition=0,
        id=ids[0],
        attempt=1,
        envelope=envelope,
        delivery_count=1,
        stream=stream,
        sent_id=envelope.id,
    )
    return topic, ids, msg


def test_a_consumer_goes_on_with_the_others_and_the_message_stays_the_same_attempt(
    db, open_db, valkey, caplog
):
    topic, ids, msg = read_by_a_frozen_worker(valkey, 10)
    attempts = []

    def handle(msg, session):
        attempts.append((msg.id, msg.attempt))
        write(session, msg.id)

    consumers = Consumers()
    try:
        with frozen(open_db(), msg):
            config = quick(retry=RetryPolicy(max_attempts=2), lease_ttl_ms=60_000)
            consumers(topic, handle, engine=db, inbox=Inbox(lock_timeout_s=1), config=config)
            eventually(lambda: [*pending(topic)] == ids[:1] and len(attempts) == 9)
            eventually(lambda: caplog.text.count(f"inbox row locked, entry {ids[0]}") >= 3)
        wait_until_finished(topic)
    finally:
        consumers.end()

    assert attempts[-1] == (ids[0], 2)
    assert dead_letters(topic) == []
    assert notes(db) == sorted(ids)


def test_a_locked_inbox_row_is_no_outage_however_long_it_lasts_and_ends_no_consumer(
    db, open_db, valkey, caplog
):
    topic, ids, msg = read_by_a_frozen_worker(valkey, 1)
    consumers = Consumers()
    try:
        with frozen(open_db(), msg):
            config = quick(lease_ttl_ms=60_000, max_outage_s=0.1)
            running = consumers(topic, write_id, engine=db, inbox=Inbox(lock_timeout_s=1), config=config)
            locked = f"inbox row locked, entry {ids[0]}"
            eventually(lambda: caplog.text.count(locked) >= 3 or not running.is_running)
            assert running.is_running
        wait_until_finished(topic)
    finally:
        consumers.end()

    assert notes(db) == ids


def test_the_lock_timeout_is_that_of_the_inbox_alone(db, open_db):
    before, inbox, within = own_setting(db), Inbox(lock_timeout_s=1), []
    locked, free = (QueueMessage("orders", "billing", entry_id, {}, 2) for entry_id in ("1-1", "1-2"))
    name = "SELECT @@innodb_lock_wait_timeout" if is_mariadb(db) else "SHOW lock_timeout"

    with frozen(open_db(), locked):
        with pytest.raises(DatabaseUnavailableError), DbSession(db) as session:
            inbox.record(session, locked)
        with DbSession(db) as session:
            inbox.record(session, free)
            within.append(str(session.scalar(text(name))))

    assert [*within, own_setting(db)] == [before, before]


def test_the_doctor_finds_a_session_that_has_an_inbox_row_locked_and_does_nothing(db, open_db):
    with frozen(open_db(), QueueMessage("orders", "billing", "1-1", {})):
        # MariaDB shows a list of transactions that is up to a moment old.
        eventually(lambda: database_facts(db).idle_sessions, every_s=0.2)
        facts = database_facts(db)
        ((session, _),) = facts.idle_sessions or ()

    assert facts.timeout == 0
    levels = {finding.check: finding.level for finding in check_database(facts)}
    assert levels == {"database": "ok", "idle-transactions": "warning"}
    after_a_minute = [*check_database(replace(facts, idle_sessions=((session, 61),)))]
    assert f"session {session} has an open transaction" in after_a_minute[-1].text
    eventually(lambda: database_facts(db).idle_sessions == (), every_s=0.2)
