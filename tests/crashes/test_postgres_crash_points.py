"""Crash points on PostgreSQL, where an inbox row is sent together with the BEGIN."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Engine, insert, select

from conquiet import (
    DbSession,
    DrainLimits,
    Inbox,
    QueueConfig,
    QueueMessage,
    RedisStreamsQueue,
    drain,
    drain_stale,
)
from conquiet.testing.crash_points import CRASHED, ENDED, CrashPoints, Fault, last_point, status_of_child
from tests.crashes.site import effects
from tests.eventually import HANG_S
from tests.services import database, open_engine

LIMITS = DrainLimits(idle_ms=20)


@dataclass(frozen=True, slots=True)
class Address:
    """All that crosses a fork."""

    redis_url: str
    database_url: str
    stream: str


@pytest.fixture
def postgres_url(tmp_path: Path) -> Iterator[str]:
    with database("postgres", tmp_path) as url:
        yield url


def handle(msg: QueueMessage, session: DbSession) -> None:
    session.execute(insert(effects), {"entry_id": msg.id})


def effect_ids(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(select(effects.c.entry_id)))


def queue_of(address: Address, consumer: str) -> RedisStreamsQueue:
    config = QueueConfig(address.stream, "billing", consumer, block_ms=20, claim_idle_ms=60_000)
    return RedisStreamsQueue.from_url(address.redis_url, config)


def crash(address: Address, number: int, fault: Fault, trace: Path) -> int:
    """The status of a child that ends at this point of a drain."""

    def run() -> int:
        engine = open_engine(address.database_url)
        with queue_of(address, f"worker-{number}") as queue:
            points = CrashPoints(number, fault, trace=trace)
            points.watch(engine)
            drain(queue, handle, engine, LIMITS, inbox=Inbox())
        return CRASHED if points.is_reached else ENDED

    trace.write_text("")
    return status_of_child(run, timeout_s=int(HANG_S), errors=trace.with_suffix(".errors"))


@pytest.mark.parametrize("fault", ["crash", "lost_answer"])
def test_no_crash_point_of_an_inbox_row_on_postgresql_loses_or_repeats_a_message(
    valkey_url: str, postgres_url: str, tmp_path: Path, fault: Fault
):
    address = Address(valkey_url, postgres_url, f"crash:{uuid.uuid4().hex}")
    engine, trace, points = open_engine(postgres_url), tmp_path / "trace", list[str]()
    effects.create(engine)
    Inbox().create_table(engine)
    status = CRASHED

    with queue_of(address, "recovery") as queue:
        for number in range(1, 100):
            [entry_id] = queue.enqueue_many([{}])
            status = crash(address, number, fault, trace)
            drain_stale(queue, handle, engine, LIMITS, min_idle_ms=0, inbox=Inbox())
            drain(queue, handle, engine, LIMITS, inbox=Inbox())
            points.append(last_point(trace))
            assert (effect_ids(engine).count(entry_id), queue.backlog_stats().pending) == (1, 0), points[-1]
            if status == ENDED:
                break
    engine.dispose()

    assert status == ENDED
    assert {"sql BEGIN with the inbox row", "sql COMMIT"} <= set(points)
