"""Inbox: two workers with the same message at the same time, and one effect."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

from sqlalchemy import Engine, event

from conquiet import DbSession, DrainLimits, DrainReport, Inbox, QueueMessage, drain, drain_stale
from tests.with_databases.conftest import OpenDb, OpenQueue
from tests.with_databases.consuming import pending
from tests.with_databases.servers import await_lock_wait
from tests.with_databases.tables import notes, write
from tests.with_databases.threads import Running, await_event


def race(
    open_db: OpenDb, open_queue: OpenQueue, end_of_first: Callable[[], None]
) -> tuple[Running[DrainReport], Running[DrainReport]]:
    """A second worker claims the message of a first one that is in the middle of its transaction."""
    first_is_within, first_may_end = Event(), Event()
    first_db, second_db = open_db(), open_db()
    second_is_at_the_inbox = first_insert_of(second_db)

    def first_handler(_msg: QueueMessage, session: DbSession) -> None:
        write(session, "first")
        first_is_within.set()
        await_event(first_may_end)
        end_of_first()

    def second_handler(_msg: QueueMessage, session: DbSession) -> None:
        write(session, "second")

    first = Running(
        lambda: drain(
            open_queue("worker-1"),
            first_handler,
            first_db,
            DrainLimits(max_messages=1, on_error="raise"),
            inbox=Inbox(),
        )
    )
    await_event(first_is_within)
    second = Running(
        lambda: drain_stale(
            open_queue("worker-2"),
            second_handler,
            second_db,
            DrainLimits(max_messages=1),
            min_idle_ms=0,
            inbox=Inbox(),
        )
    )
    await_event(second_is_at_the_inbox)
    await_lock_wait(open_db())
    first_may_end.set()
    return first, second


def first_insert_of(engine: Engine) -> Event:
    """Set when the engine is about to insert a row."""
    begun = Event()

    @event.listens_for(engine, "before_cursor_execute")
    def look(_connection, _cursor, statement, _parameters, _context, _many):
        if "INSERT" in statement:
            begun.set()

    return begun


def fail() -> None:
    raise ValueError("the first worker failed")


def test_two_workers_with_the_same_message_have_one_effect(open_db: OpenDb, open_queue: OpenQueue):
    queue = open_queue()
    queue.enqueue({})

    first, second = race(open_db, open_queue, end_of_first=lambda: None)

    assert (first.result().handled, second.result().skipped) == (1, 1)
    assert (pending(queue), notes(open_db())) == (0, ["first"])


def test_second_worker_handles_the_message_when_the_first_one_fails(open_db: OpenDb, open_queue: OpenQueue):
    queue = open_queue()
    queue.enqueue({})

    first, second = race(open_db, open_queue, end_of_first=fail)

    assert isinstance(first.error(), ValueError)
    assert second.result().handled == 1
    assert (pending(queue), notes(open_db())) == (0, ["second"])
