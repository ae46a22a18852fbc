"""While the database is away no message is at fault: none is given up, none uses up an attempt."""

from __future__ import annotations

import uuid

import pytest
from sqlalchemy import create_engine, insert, make_url, select

from conquiet import Inbox
from conquiet.errors import DatabaseUnavailableError
from conquiet.mq import PartitionConsumer, Producer, RetryPolicy, Topics
from tests.eventually import eventually
from tests.link import Link
from tests.with_databases.conftest import only_on
from tests.with_databases.servers import kill, number_of
from tests.with_databases.tables import effects
from tests.with_redis.mq.consuming import (
    GROUP,
    Consumers,
    dead_letters,
    metric,
    pending,
    quick,
    wait_until_finished,
)

pytestmark = only_on("postgres", "mariadb")

ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
def topic(valkey):
    return Topics(valkey).create(f"orders-{uuid.uuid4().hex[:10]}")


@pytest.fixture
def send(valkey, topic):
    return lambda count: Producer(valkey).send_many(topic.name, [{"n": n} for n in range(count)])


@pytest.fixture
def start():
    consumers = Consumers()
    try:
        yield consumers
    finally:
        consumers.end()


@pytest.fixture
def link(db):
    with Link(db.url.host or "127.0.0.1", db.url.port or 3306) as opened:
        yield opened


@pytest.fixture
def engine(db, link):
    """The database behind the link."""
    opened = create_engine(make_url(db.url).set(host="127.0.0.1", port=link.port))
    yield opened
    opened.dispose()


def written(db):
    with db.connect() as connection:
        return sorted(connection.scalars(select(effects.c.entry_id)))


@pytest.mark.parametrize("inbox", [None, Inbox()])
def test_an_outage_uses_up_no_attempt_and_gives_up_no_message(db, engine, link, topic, send, start, inbox):
    ids = send(20)
    attempts = []

    def write(msg, session):
        attempts.append(msg.attempt)
        if len(attempts) == 5:
            link.cut()
        session.execute(insert(effects), {"entry_id": msg.id, "note": ""})

    place = {"topic": topic.name, "partition": "0", "group": GROUP}
    start(topic, write, engine=engine, inbox=inbox, config=quick(retry=ONCE, lease_ttl_ms=60_000))
    eventually(lambda: metric("conquiet_mq_database_unavailable_total", **place) >= 3)
    deliveries = {count for _, count in pending(topic).values()}
    link.mend()

    wait_until_finished(topic)
    assert written(db) == sorted(ids)
    assert set(attempts) == deliveries == {1}
    assert dead_letters(topic) == []


def test_an_outage_that_lasts_ends_the_consumer_and_hands_everything_back(engine, link, topic, send, start):
    send(3)
    link.cut()

    running = start(topic, lambda msg, session: None, engine=engine, config=quick(max_outage_s=0.3))
    running.join()

    assert isinstance(running.error, DatabaseUnavailableError)
    assert {count for _, count in pending(topic).values()} == {0}
    assert not topic.client.exists(topic.keys.lease(GROUP, 0))
    assert dead_letters(topic) == []


def test_a_partition_that_is_acquired_during_an_outage_does_not_end_a_consumer_with_an_inbox(
    db, engine, link, topic, send, start
):
    send(2)

    def write(msg, session):
        session.execute(insert(effects), {"entry_id": msg.id, "note": ""})

    class CutFirst(Inbox):
        """Its table is made by the consumer's constructor; then the link is cut."""

        def create_table(self, of):
            super().create_table(of)
            link.cut()

    place = {"topic": topic.name, "partition": "0", "group": GROUP}
    running = start(topic, write, engine=engine, inbox=CutFirst(), config=quick(retry=ONCE))
    eventually(lambda: metric("conquiet_mq_database_unavailable_total", **place) >= 2)
    assert running.is_running
    link.mend()

    wait_until_finished(topic)
    assert len(written(db)) == 2


def test_a_message_that_loses_its_connection_while_the_database_is_there_has_failed(
    db, engine, topic, send, start
):
    (first, second) = send(2)

    def kill_own_connection(msg, session):
        if msg.id == first:
            kill(db, number_of(session.connection))
        session.execute(insert(effects), {"entry_id": msg.id, "note": ""})

    start(topic, kill_own_connection, engine=engine, config=quick(retry=ONCE))

    wait_until_finished(topic)
    assert written(db) == [second]
    assert [letter["originalMessageId"] for letter in dead_letters(topic)] == [first]


def test_a_message_that_takes_the_database_down_each_time_is_not_spared_for_ever(
    engine, link, topic, send, start, caplog
):
    send(1)
    begun = []
    waits_before = []

    def waits():
        return sum("database unavailable" in record.getMessage() for record in caplog.records)

    def cut(msg, session):
        waits_before.append(waits())
        begun.append(msg.attempt)
        link.cut()
        session.execute(insert(effects), {"entry_id": msg.id, "note": ""})

    def mend_if_cut():
        # As long as it is spared, only when it waits: a link that is mended earlier was no outage.
        if len(begun) > len(mended) and (len(begun) > 2 or waits() > waits_before[len(begun) - 1]):
            mended.append(1)
            link.mend()
        return dead_letters(topic)

    mended: list[int] = []
    start(topic, cut, engine=engine, config=quick(retry=RetryPolicy(max_attempts=2, base_delay_ms=10)))

    eventually(mend_if_cut, every_s=0.2)
    assert begun == [1, 1, 1, 2]


def test_a_consumer_that_starts_in_an_outage_waits_for_its_database(
    db, engine, link, topic, send, start, caplog
):
    ids = send(3)

    def write(msg, session):
        session.execute(insert(effects), {"entry_id": msg.id, "note": ""})

    link.cut()
    start(topic, write, engine=engine, inbox=Inbox(table="conquiet_inbox_of_late"))
    eventually(lambda: "waits for its database" in caplog.text)
    link.mend()

    eventually(lambda: written(db) == sorted(ids))


def test_a_consumer_that_starts_in_an_outage_ends_when_that_lasts_too_long(engine, link, topic):
    link.cut()
    consumer = PartitionConsumer(
        topic, GROUP, lambda msg, session: None, engine, inbox=True, config=quick(max_outage_s=0.1)
    )

    with pytest.raises(DatabaseUnavailableError):
        consumer.run()
