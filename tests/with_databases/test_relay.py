"""OutboxRelay: what was committed is published, oldest first, and none of it is lost."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from sqlalchemy import Engine, create_engine, event

from conquiet import (
    DbError,
    DbSession,
    DrainLimits,
    Outbox,
    OutboxRelay,
    QueueError,
    RedisStreamsQueue,
    drain,
)
from tests.services import Client, checked_out, free_port
from tests.with_databases.conftest import OpenDb, OpenQueue
from tests.with_databases.consuming import in_session
from tests.with_databases.threads import Running

PAYLOADS = [
    pytest.param({}, id="empty"),
    pytest.param({"text": "🦀 naïve ключ 鍵", "🦀": 1}, id="four-byte-characters"),
    pytest.param({"text": "before\u0000after"}, id="null-character"),
    pytest.param({"text": "'\"\\ %s :name \r\n\t\u2028 trailing "}, id="quotes-and-blanks"),
    pytest.param({"text": "é" * 50_000}, id="100-kilobytes"),
    pytest.param(
        {"number": 12345678901234567890, "half": 0.1, "nothing": None, "list": [1, [2]]}, id="numbers"
    ),
]


@pytest.fixture
def relay(db: Engine, valkey: redis.Redis, outbox: Outbox) -> OutboxRelay:
    """A relay of that outbox."""
    return OutboxRelay(db, valkey, outbox)


@pytest.fixture
def away() -> Iterator[redis.Redis]:
    """A client of a server that is not there."""
    with redis.Redis(port=free_port(), retry=Retry(NoBackoff(), 0)) as client:
        yield client


def commit_messages(db: Engine, outbox: Outbox, *messages: tuple[str, dict[str, Any]]) -> None:
    with DbSession(db) as session:
        for stream, payload in messages:
            outbox.enqueue(session, stream, payload)


def data_of(client: Client, stream: str) -> list[bytes]:
    return [fields[b"data"] for _, fields in client.xrange(stream)]


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"n": number} for number in range(count)]


def encoded(count: int) -> list[bytes]:
    return [b'{"n":%d}' % number for number in range(count)]


def die_when_published(engine: Engine, client: Client, stream: str) -> None:
    """Die between the publishing and the commit."""

    @event.listens_for(engine, "commit")
    def crash(_connection):
        if client.exists(stream):
            raise KeyboardInterrupt


def test_committed_message_is_published_and_waits_no_more(
    db: Engine, outbox: Outbox, relay: OutboxRelay, valkey: redis.Redis, stream: str
):
    commit_messages(db, outbox, (stream, {"n": 0}))

    moved = relay.relay()

    assert (moved, data_of(valkey, stream), outbox.waiting(db)) == (1, encoded(1), 0)


def test_message_of_a_failed_transaction_is_never_published(
    db: Engine, outbox: Outbox, relay: OutboxRelay, valkey: redis.Redis, stream: str
):
    def work(session: DbSession) -> None:
        outbox.enqueue(session, stream, {})
        raise ValueError("failed")

    with pytest.raises(ValueError, match="failed"):
        in_session(db, work)
    moved = relay.relay()

    assert (moved, valkey.exists(stream)) == (0, 0)


def test_published_message_is_read_by_a_queue(
    db: Engine, outbox: Outbox, relay: OutboxRelay, valkey_queue: RedisStreamsQueue
):
    seen = []
    commit_messages(db, outbox, (valkey_queue.config.stream_key, {"n": 0}))

    relay.relay()
    drain(valkey_queue, lambda msg, _session: seen.append(msg.payload), db, DrainLimits(max_messages=1))

    assert seen == [{"n": 0}]


def test_messages_arrive_in_the_order_in_which_they_were_committed(
    db: Engine, outbox: Outbox, relay: OutboxRelay, valkey: redis.Redis, stream: str
):
    for payload in numbered(10):
        commit_messages(db, outbox, (stream, payload))

    moved = relay.relay()

    assert (moved, data_of(valkey, stream)) == (10, encoded(10))


@pytest.mark.parametrize("payload", PAYLOADS)
def test_message_is_byte_for_byte_what_enqueue_writes(
    db: Engine,
    outbox: Outbox,
    relay: OutboxRelay,
    open_queue: OpenQueue,
    stream: str,
    payload: dict[str, Any],
):
    direct, relayed = open_queue(name=stream), open_queue(name=f"{stream}:relayed")

    direct.enqueue(payload)
    commit_messages(db, outbox, (relayed.config.stream_key, payload))
    relay.relay()

    assert data_of(direct.client, relayed.config.stream_key) == data_of(direct.client, stream)


@pytest.mark.parametrize("name", ["orders ", "s" * 1000, "orders-🦀"])
def test_stream_name_arrives_as_it_was_written(
    db: Engine, outbox: Outbox, relay: OutboxRelay, valkey: redis.Redis, stream: str, name: str
):
    commit_messages(db, outbox, (f"{stream}:{name}", {"n": 0}))

    relay.relay()

    assert data_of(valkey, f"{stream}:{name}") == encoded(1)


def test_limit_bounds_one_relay(
    db: Engine, outbox: Outbox, relay: OutboxRelay, valkey: redis.Redis, stream: str
):
    commit_messages(db, outbox, *((stream, payload) for payload in numbered(5)))

    moved = relay.relay(limit=2)

    assert (moved, data_of(valkey, stream), outbox.waiting(db)) == (2, encoded(2), 3)


def test_relay_of_an_empty_outbox_moves_nothing(relay: OutboxRelay):
    assert relay.relay() == 0


@pytest.mark.parametrize("limit", [0, True, None])
def test_limit_that_is_no_positive_int_is_refused(relay: OutboxRelay, limit: Any):
    with pytest.raises((TypeError, ValueError), match="limit must be"):
        relay.relay(limit)


def test_rows_stay_while_redis_is_unavailable(db: Engine, outbox: Outbox, away: redis.Redis, stream: str):
    commit_messages(db, outbox, (stream, {"n": 0}))

    with pytest.raises(QueueError, match="relay on stream") as raised:
        OutboxRelay(db, away, outbox).relay()

    assert raised.value.stream == stream
    assert (outbox.waiting(db), checked_out(db)) == (1, 0)


def test_rows_go_when_redis_is_back(
    db: Engine, outbox: Outbox, relay: OutboxRelay, away: redis.Redis, valkey: redis.Redis, stream: str
):
    commit_messages(db, outbox, *((stream, payload) for payload in numbered(3)))

    with pytest.raises(QueueError):
        OutboxRelay(db, away, outbox).relay()
    moved = relay.relay()

    assert (moved, data_of(valkey, stream), outbox.waiting(db)) == (3, encoded(3), 0)


def test_relay_of_an_empty_outbox_does_not_ask_redis(db: Engine, outbox: Outbox, away: redis.Redis):
    assert OutboxRelay(db, away, outbox).relay() == 0


def test_row_that_redis_refuses_stays_and_the_others_go(
    db: Engine, outbox: Outbox, relay: OutboxRelay, valkey: redis.Redis, stream: str
):
    bad = f"{stream}:no-stream"
    valkey.set(bad, "a string")
    commit_messages(db, outbox, (stream, {"n": 0}), (bad, {"n": 7}), (stream, {"n": 1}))

    with pytest.raises(QueueError, match="WRONGTYPE") as raised:
        relay.relay()

    assert raised.value.stream == bad
    assert (data_of(valkey, stream), outbox.waiting(db)) == (encoded(2), 1)


def test_refused_rows_do_not_keep_the_others_from_going(
    db: Engine, outbox: Outbox, relay: OutboxRelay, valkey: redis.Redis, stream: str
):
    bad = f"{stream}:no-stream"
    valkey.set(bad, "a string")
    commit_messages(db, outbox, (bad, {"n": 7}), (bad, {"n": 8}), (stream, {"n": 0}))

    for _ in range(3):
        with suppress(QueueError):
            relay.relay(limit=2)

    assert (data_of(valkey, stream), outbox.waiting(db)) == (encoded(1), 2)


def test_refused_row_goes_once_its_stream_can_take_it(
    db: Engine, outbox: Outbox, relay: OutboxRelay, valkey: redis.Redis, stream: str
):
    valkey.set(stream, "a string")
    commit_messages(db, outbox, (stream, {"n": 0}))

    with pytest.raises(QueueError):
        relay.relay()
    valkey.delete(stream)
    moved = relay.relay()

    assert (moved, data_of(valkey, stream)) == (1, encoded(1))


def test_crash_between_publishing_and_commit_publishes_once(
    db: Engine, open_db: OpenDb, outbox: Outbox, valkey: redis.Redis, stream: str
):
    crashing = open_db()
    die_when_published(crashing, valkey, stream)
    commit_messages(db, outbox, (stream, {"n": 0}))
    with pytest.raises(KeyboardInterrupt):
        OutboxRelay(crashing, valkey, outbox).relay()
    crashing.dispose()
    commit_messages(db, outbox, (stream, {"n": 1}))
    OutboxRelay(db, valkey, outbox).relay()

    assert (data_of(valkey, stream), outbox.waiting(db)) == (encoded(2), 0)


def test_relay_leaves_nothing_beside_the_stream(
    db: Engine, outbox: Outbox, relay: OutboxRelay, valkey: redis.Redis, stream: str
):
    commit_messages(db, outbox, *((stream, payload) for payload in numbered(5)))

    relay.relay()

    assert valkey.keys(f"*{stream}*once*") == []


def test_row_that_gets_the_id_of_one_that_was_published_is_published_too(
    db: Engine, open_db: OpenDb, outbox: Outbox, valkey: redis.Redis, stream: str
):
    """As in a database that was restored from a backup: what is remembered of an id is about another row."""
    crashing = open_db()
    die_when_published(crashing, valkey, stream)
    commit_messages(db, outbox, (stream, {"n": 0}))
    with pytest.raises(KeyboardInterrupt):
        OutboxRelay(crashing, valkey, outbox).relay()
    crashing.dispose()
    with db.begin() as connection:
        (first,) = connection.exec_driver_sql(f"SELECT id FROM {outbox.table}").scalars()
        connection.exec_driver_sql(f"DELETE FROM {outbox.table}")
    commit_messages(db, outbox, (stream, {"n": 1}))
    with db.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {outbox.table} SET id = {first}")
    OutboxRelay(db, valkey, outbox).relay()

    assert data_of(valkey, stream) == encoded(2)


def test_a_relay_by_another_url_knows_what_was_published(
    db: Engine, open_db: OpenDb, outbox: Outbox, valkey: redis.Redis, stream: str
):
    crashing = open_db()
    die_when_published(crashing, valkey, stream)
    option = {"sqlite": "timeout", "postgresql": "application_name"}.get(db.dialect.name, "connect_timeout")
    commit_messages(db, outbox, (stream, {"n": 0}))
    with pytest.raises(KeyboardInterrupt):
        OutboxRelay(crashing, valkey, outbox).relay()
    crashing.dispose()
    other = create_engine(db.url.update_query_dict({option: "9"}))
    OutboxRelay(other, valkey, outbox).relay()
    other.dispose()

    assert (data_of(valkey, stream), outbox.waiting(db)) == (encoded(1), 0)


def test_the_same_row_of_two_databases_behind_one_url_is_published_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, valkey: redis.Redis, stream: str
):
    """As in containers, each with a database of its own at one place: rows may be equal in all."""
    monkeypatch.setattr("conquiet.db.outbox.now_ms", lambda: 1_700_000_000_000)
    outbox = Outbox()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        engine = create_engine("sqlite:///outbox.db")
        outbox.create_table(engine)
        commit_messages(engine, outbox, (stream, {"n": 0}))
        monkeypatch.setattr(OutboxRelay, "_forget", lambda *_: None)
        assert OutboxRelay(engine, valkey, outbox).relay() == 1
        engine.dispose()

    assert data_of(valkey, stream) == encoded(1) * 2


def test_each_table_and_each_database_has_a_name_of_its_own_that_stays(open_db: OpenDb, tmp_path: Path):
    elsewhere = create_engine(f"sqlite:///{tmp_path}/other.db")
    engines = (open_db(), open_db(), elsewhere)

    names = [Outbox(table=table).name_in(engine) for table in ("one", "two") for engine in engines]

    assert (names[0], names[3], len(set(names))) == (names[1], names[4], 4)
    assert names[0] == Outbox(table="one").name_in(engines[0])
    elsewhere.dispose()


def test_relays_that_begin_at_once_agree_on_the_name(open_db: OpenDb):
    engines = [open_db() for _ in range(4)]
    barrier = threading.Barrier(len(engines))

    def name_of(engine: Engine) -> str:
        barrier.wait()
        return Outbox(table="fresh").name_in(engine)

    with ThreadPoolExecutor(len(engines)) as pool:
        assert len(set(pool.map(name_of, engines))) == 1


def test_database_that_is_unavailable_is_a_db_error(unreachable: Engine, valkey: redis.Redis):
    with pytest.raises(DbError):
        OutboxRelay(unreachable, valkey).relay()


def test_two_relays_at_once_publish_each_message_once_and_in_order(
    db: Engine, open_db: OpenDb, outbox: Outbox, valkey: redis.Redis, stream: str
):
    streams = [f"{stream}:{name}" for name in ("even", "odd")]
    commit_messages(db, outbox, *((streams[number % 2], {"n": number}) for number in range(300)))

    def relay_until_empty() -> int:
        engine, moved = open_db(), 0
        relay = OutboxRelay(engine, valkey, outbox)
        while outbox.waiting(engine):
            moved += relay.relay(limit=20)
        return moved

    moved = [running.result() for running in [Running(relay_until_empty), Running(relay_until_empty)]]

    assert sum(moved) == 300
    assert [data_of(valkey, name) for name in streams] == [encoded(300)[0::2], encoded(300)[1::2]]


def test_large_rows_are_relayed_few_at_a_time(db, outbox, relay, valkey, stream):
    commit_messages(db, outbox, *((stream, {"n": n, "text": "x" * (4 << 20)}) for n in range(5)))

    with DbSession(db) as session:
        read = outbox.lock_oldest(session, 5)
    moved = relay.relay()

    assert (len(read), moved) == (2, 5)
    assert [json.loads(data)["n"] for data in data_of(valkey, stream)] == [0, 1, 2, 3, 4]
    valkey.delete(stream)
