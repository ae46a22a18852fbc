"""A database that answers and refuses to write is unavailable: no attempt, no delivery is used up."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, insert, make_url, select, text

from conquiet import DrainError, DrainLimits, Inbox, drain
from conquiet.errors import DatabaseUnavailableError
from conquiet.mq import Producer, RetryPolicy, Topics
from tests.eventually import eventually
from tests.with_databases.conftest import only_on
from tests.with_databases.servers import is_mariadb, kill, number_of
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

ONCE = RetryPolicy(max_attempts=1)
Codes = dict[str, str | int]
DISK_FULL: Codes = {"postgres": "53100", "mariadb": 1114}
READ_ONLY: Codes = {"mariadb": 1290}
LOCKED: Codes = {"postgres": "55P03", "mariadb": 1205}


@pytest.fixture
def topic(valkey):
    return Topics(valkey).create(f"orders-{uuid.uuid4().hex[:10]}")


@pytest.fixture
def start():
    consumers = Consumers()
    try:
        yield consumers
    finally:
        consumers.end()


class Refusal:
    """Has the database refuse writes, from `begin` to `end`, for whoever writes."""

    def __init__(self, db: Engine, how: str) -> None:
        self._db = db
        self._how = how
        self._locker: Connection | None = None

    def begin(self) -> None:
        if self._how == "read-only" and not is_mariadb(self._db):
            self._set_read_only("on")
        elif self._how == "locked" and self._db.dialect.name == "sqlite":
            self._locker = self._db.connect()
            self._locker.exec_driver_sql("BEGIN IMMEDIATE")
        elif self._how == "locked" and not is_mariadb(self._db):
            self._locker = self._db.connect()
            self._locker.exec_driver_sql("LOCK TABLE effects IN SHARE MODE")
        else:
            codes = {"disk full": DISK_FULL, "read-only": READ_ONLY, "locked": LOCKED}[self._how]
            refuse_rows(self._db, codes["mariadb" if is_mariadb(self._db) else "postgres"])

    def end(self) -> None:
        if self._locker is not None:
            self._locker.close()
            self._locker = None
        elif self._how == "read-only" and not is_mariadb(self._db):
            self._set_read_only("off")
        elif self._db.dialect.name != "sqlite":
            accept_rows(self._db)

    def _set_read_only(self, value: str) -> None:
        name = self._db.url.database
        with self._db.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("SET default_transaction_read_only = off"))
            connection.execute(text(f"ALTER DATABASE {name} SET default_transaction_read_only = {value}"))
        self._db.dispose()


def refuse_rows(db: Engine, code: str | int, of_note: str | None = None) -> None:
    """Rows of `effects` are refused with an error code of the database itself."""
    condition = "" if of_note is None else f"IF NEW.note = '{of_note}' THEN "
    end = "" if of_note is None else " END IF;"
    with db.begin() as connection:
        if is_mariadb(db):
            signal = f"SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = 'refused';"
            body = f"BEGIN {condition}{signal}{end} END"
            connection.exec_driver_sql(f"CREATE TRIGGER refuse BEFORE INSERT ON effects FOR EACH ROW {body}")
        else:
            body = (
                f"BEGIN {condition}RAISE EXCEPTION 'refused' USING ERRCODE = '{code}';{end} RETURN NEW; END"
            )
            connection.exec_driver_sql(
                f"CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $${body}$$"
            )
            connection.exec_driver_sql(
                "CREATE TRIGGER refuse BEFORE INSERT ON effects FOR EACH ROW EXECUTE FUNCTION refuse()"
            )


def accept_rows(db: Engine) -> None:
    with db.begin() as connection:
        of = "" if is_mariadb(db) else " ON effects"
        connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS refuse{of}")


@contextmanager
def refusing(db: Engine, how: str) -> Iterator[Refusal]:
    if db.dialect.name == "sqlite" and how != "locked":
        pytest.skip("SQLite: see tests/unit/test_outage_codes.py")
    refusal = Refusal(db, how)
    try:
        yield refusal
    finally:
        refusal.end()


@pytest.fixture
def engine(db: Engine) -> Iterator[Engine]:
    """An engine on the same database that waits for locks for a moment only."""
    url = make_url(db.url)
    options: dict[str, Any] = {}
    if url.get_backend_name() == "postgresql":
        options = {"options": "-c lock_timeout=50"}
    elif url.get_backend_name() == "sqlite":
        options = {"timeout": 0.05}
    opened = create_engine(url, connect_args=options)
    yield opened
    opened.dispose()


def write(msg: Any, session: Any) -> None:
    session.execute(insert(effects), {"entry_id": msg.id, "note": str(msg.payload["n"])})


def written(db: Engine) -> list[str]:
    with db.connect() as connection:
        return sorted(connection.scalars(select(effects.c.entry_id)))


def deliveries(queue: Any) -> list[int]:
    config = queue.config
    rows = queue.client.xpending_range(config.stream_key, config.consumer_group, "-", "+", 1_000)
    return [row["times_delivered"] for row in rows]


def messages(valkey: Any, topic: Any, count: int) -> list[str]:
    return Producer(valkey).send_many(topic.name, [{"n": n} for n in range(count)])


@pytest.mark.parametrize(
    ("how", "ordering"),
    [("read-only", "default"), ("disk full", "default"), ("locked", "default"), ("read-only", "strict")],
)
@pytest.mark.parametrize("inbox", [None, Inbox()])
def test_a_database_that_refuses_to_write_uses_up_no_attempt_and_gives_up_no_message(
    db, engine, valkey, topic, start, how, ordering, inbox
):
    if how == "read-only" and ordering == "strict" and is_mariadb(db):
        pytest.skip("a read-only server would be needed that others do not use")
    ids = messages(valkey, topic, 20)
    Inbox().create_table(db)
    attempts = []
    place = {"topic": topic.name, "partition": "0", "group": GROUP}

    def write_and_note(msg, session):
        attempts.append(msg.attempt)
        write(msg, session)

    with refusing(db, how) as refusal:
        refusal.begin()
        config = quick(retry=ONCE, lease_ttl_ms=60_000, ordering=ordering)
        start(topic, write_and_note, engine=engine, inbox=inbox, config=config)
        eventually(lambda: metric("conquiet_mq_database_unavailable_total", **place) >= 6)

    wait_until_finished(topic)
    assert written(db) == sorted(ids)
    assert set(attempts) == {1}
    assert dead_letters(topic) == []


@pytest.mark.parametrize("how", ["read-only", "disk full", "locked"])
def test_a_refusal_that_lasts_ends_the_consumer_and_hands_everything_back(
    db, engine, valkey, topic, start, how
):
    messages(valkey, topic, 3)

    with refusing(db, how) as refusal:
        refusal.begin()
        running = start(topic, write, engine=engine, config=quick(retry=ONCE, max_outage_s=0.3))
        running.join()

    assert isinstance(running.error, DatabaseUnavailableError)
    assert {count for _, count in pending(topic).values()} == {0}
    assert dead_letters(topic) == []


@only_on("postgres", "mariadb")
@pytest.mark.parametrize("codes", [DISK_FULL, LOCKED])
def test_a_message_that_alone_is_refused_has_failed(db, engine, valkey, topic, start, codes):
    ids = messages(valkey, topic, 5)
    refuse_rows(db, codes["mariadb" if is_mariadb(db) else "postgres"], of_note="1")
    try:
        start(topic, write, engine=engine, config=quick(retry=ONCE))
        wait_until_finished(topic)
    finally:
        accept_rows(db)

    assert written(db) == sorted({*ids} - {ids[1]})
    assert [letter["originalMessageId"] for letter in dead_letters(topic)] == [ids[1]]


@only_on("postgres", "mariadb")
def test_a_message_that_is_refused_for_as_long_as_an_outage_may_last_and_is_alone_has_failed(
    db, engine, valkey, topic, start
):
    (alone,) = messages(valkey, topic, 1)
    refuse_rows(db, DISK_FULL["mariadb" if is_mariadb(db) else "postgres"])
    try:
        start(topic, write, engine=engine, config=quick(retry=ONCE, max_outage_s=12))
        wait_until_finished(topic)
    finally:
        accept_rows(db)

    assert [letter["originalMessageId"] for letter in dead_letters(topic)] == [alone]


@only_on("postgres", "mariadb")
@pytest.mark.parametrize("ordering", ["default", "strict"])
def test_messages_of_a_key_that_the_database_refuses_for_a_while_keep_their_order(
    db, engine, valkey, topic, start, ordering
):
    for n in range(12):
        Producer(valkey).send(topic.name, {"n": n}, key=f"customer-{n % 3}")
    handled: dict[int, list[int]] = {0: [], 1: [], 2: []}

    def write_and_note(msg, session):
        write(msg, session)
        handled[msg.payload["n"] % 3].append(msg.payload["n"])

    place = {"topic": topic.name, "partition": "0", "group": GROUP}
    with refusing(db, "locked") as refusal:
        refusal.begin()
        start(topic, write_and_note, engine=engine, config=quick(retry=ONCE, ordering=ordering))
        eventually(lambda: metric("conquiet_mq_database_unavailable_total", **place) >= 5)

    wait_until_finished(topic)
    assert handled == {0: [0, 3, 6, 9], 1: [1, 4, 7, 10], 2: [2, 5, 8, 11]}


@pytest.mark.parametrize("how", ["read-only", "disk full", "locked"])
@pytest.mark.parametrize("count", [1, 20])
def test_a_drain_ends_when_the_database_refuses_to_write_and_no_delivery_is_used_up(
    db, engine, valkey_queue, how, count
):
    valkey_queue.enqueue_many([{"n": n} for n in range(count)])

    with refusing(db, how) as refusal:
        refusal.begin()
        for _ in range(3):
            with pytest.raises(DatabaseUnavailableError):
                drain(valkey_queue, write, engine, DrainLimits(max_deliveries=1, idle_ms=50))
        assert set(deliveries(valkey_queue)) == {0}

    report = drain(valkey_queue, write, engine, DrainLimits(max_deliveries=1, idle_ms=50))
    assert (report.handled, report.dead_lettered, len(written(db))) == (count, 0, count)


@only_on("postgres", "mariadb")
def test_a_message_that_alone_is_refused_does_not_keep_a_drain_from_the_others(db, engine, valkey_queue):
    ids = valkey_queue.enqueue_many([{"n": n} for n in range(5)])
    refuse_rows(db, LOCKED["mariadb" if is_mariadb(db) else "postgres"], of_note="0")
    try:
        with pytest.raises(DrainError) as raised:
            drain(valkey_queue, write, engine, DrainLimits(idle_ms=50))
    finally:
        accept_rows(db)

    assert [failure.id for failure in raised.value.failures] == ids[:1]
    assert (raised.value.report.handled, deliveries(valkey_queue)) == (4, [1])


@only_on("postgres")
def test_a_failover_to_a_standby_that_ends_the_connections_uses_up_no_attempt(
    db, engine, valkey, topic, start
):
    ids = messages(valkey, topic, 10)
    attempts = []
    place = {"topic": topic.name, "partition": "0", "group": GROUP}

    with refusing(db, "read-only") as refusal:

        def write_or_fail_over(msg, session):
            attempts.append(msg.attempt)
            if len(attempts) == 5:
                refusal.begin()
                kill(db, number_of(session.connection))
            write(msg, session)

        start(topic, write_or_fail_over, engine=engine, config=quick(retry=ONCE, lease_ttl_ms=60_000))
        eventually(lambda: metric("conquiet_mq_database_unavailable_total", **place) >= 3)

    wait_until_finished(topic)
    assert written(db) == sorted(ids)
    assert (set(attempts), dead_letters(topic)) == ({1}, [])


@only_on("postgres")
def test_a_connection_of_the_pool_that_stays_read_only_after_a_failover_is_not_used_again(
    db, valkey, topic, start
):
    messages(valkey, topic, 1)
    engine = create_engine(db.url, pool_size=2, max_overflow=0)
    read_only, writable = engine.connect(), engine.connect()
    read_only.execute(text("SET default_transaction_read_only = on"))
    read_only.commit()
    read_only.close()
    writable.close()
    seen = []

    def write_and_note(msg, session):
        seen.append(session.scalar(text("SELECT current_setting('transaction_read_only')")))
        write(msg, session)

    start(topic, write_and_note, engine=engine, config=quick(retry=ONCE, lease_ttl_ms=60_000))
    wait_until_finished(topic)
    engine.dispose()

    assert seen == ["on", "off"]
