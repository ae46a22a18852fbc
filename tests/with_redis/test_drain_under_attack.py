"""What the one engine must not do to a plain stream: each of these failed when it was written."""

from __future__ import annotations

import datetime
import json
import time
from contextlib import suppress

import pytest
from sqlalchemy import create_engine, event, insert, select
from sqlalchemy.exc import OperationalError

from conquiet import DrainError, DrainLimits, Inbox, QueueConsumer, QueueError, drain
from conquiet.consume.dead_letter import dead_letter_stream
from conquiet.errors import DatabaseUnavailableError, MessageRejectedError
from conquiet.mq import DeadLetter, Retry
from tests.conftest import effects
from tests.reports import report_of

GROUP = "billing"


def write_effect(msg, session) -> None:
    session.execute(insert(effects), {"entry_id": msg.id, "note": str(msg.payload.get("n"))})


def effect_ids(engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(select(effects.c.entry_id)))


def pending(client, stream) -> dict[str, tuple[bytes, int, int]]:
    """Entry id to consumer, delivery count and idle time."""
    return {
        row["message_id"].decode(): (row["consumer"], row["times_delivered"], row["time_since_delivered"])
        for row in client.xpending_range(stream, GROUP, "-", "+", 10_000)
    }


def unavailable(*, after_s: float = 0.0):
    """An engine without a database, and how often a connection was asked for."""
    asked = []

    def connect():
        asked.append(time.monotonic())
        time.sleep(after_s)
        raise OperationalError("connect", {}, Exception("refused"))

    return create_engine("sqlite://", creator=connect), asked


def test_a_dead_letter_that_redis_refuses_keeps_no_committed_message_from_its_ack(
    make_queue, engine, client, stream
):
    """The dead letters' key is of another type; as well: OOM, an ACL that has no such key."""
    queue = make_queue()
    ids = queue.enqueue_many([{"n": n} for n in range(8)])
    client.set(dead_letter_stream(stream), "not a stream")

    def handler(msg, session):
        write_effect(msg, session)
        time.sleep(0.03)
        return DeadLetter("broken") if msg.payload["n"] == 1 else None

    with pytest.raises(QueueError):
        drain(queue, handler, engine, DrainLimits(max_messages=8, idle_ms=50))

    committed = effect_ids(engine)
    left = pending(client, stream)
    assert set(committed).isdisjoint(left), "committed, and will be handled once more"
    begun = {*committed, ids[1]}
    assert all(idle > 10**9 for entry_id, (_, _, idle) in left.items() if entry_id not in begun), (
        "read, not begun, and not handed back"
    )


def test_pending_entries_that_were_trimmed_do_not_end_a_drain_before_new_messages(
    make_queue, engine, client, stream
):
    queue = make_queue()
    queue.enqueue_many([{"n": n} for n in range(3_000)])
    queue.read(50, 3_000)
    client.xtrim(stream, maxlen=0, approximate=False)
    (new,) = queue.enqueue_many([{"n": -1}])

    drain(queue, write_effect, engine, DrainLimits(idle_ms=20))

    assert effect_ids(engine) == [new]


def test_a_drain_without_a_database_asks_for_a_connection_once(make_queue):
    queue = make_queue()
    queue.enqueue({"n": 1})
    engine, asked = unavailable()

    with pytest.raises(DatabaseUnavailableError):
        drain(queue, write_effect, engine, DrainLimits(idle_ms=50))

    assert len(asked) == 1


def test_a_drain_without_a_database_fails_also_when_its_time_is_over(make_queue):
    """A pool that waits for a connection as long as the drain may last."""
    queue = make_queue()
    queue.enqueue({"n": 1})
    engine, _ = unavailable(after_s=0.3)

    with pytest.raises(DatabaseUnavailableError):
        drain(queue, write_effect, engine, DrainLimits(max_duration_s=0.3))


def test_a_handler_that_has_no_database_of_its_own_runs_once_in_a_drain(make_queue, engine):
    queue = make_queue()
    queue.enqueue({"n": 1})
    runs = []

    def handler(msg, session):
        runs.append(msg.id)
        raise DatabaseUnavailableError("the ledger")

    with pytest.raises(DatabaseUnavailableError):
        drain(queue, handler, engine, DrainLimits(idle_ms=50))

    assert len(runs) == 1


def test_a_dead_letter_whose_payload_the_handler_has_changed_ends_no_drain(
    make_queue, engine, client, stream
):
    queue = make_queue()
    ids = queue.enqueue_many([{"n": 0}, {"n": 1}])

    def handler(msg, session):
        if msg.payload["n"] == 0:
            msg.payload["at"] = datetime.datetime.now(datetime.UTC)
            return DeadLetter("too late")
        write_effect(msg, session)
        return None

    report = drain(queue, handler, engine, DrainLimits(idle_ms=50))

    assert (report.dead_lettered, report.handled) == (1, 1)
    assert effect_ids(engine) == ids[1:]


def test_a_dead_letter_has_the_payload_that_was_sent(make_queue, engine, client, stream):
    queue = make_queue()
    queue.enqueue({"n": 0, "iban": "DE02"})

    def handler(msg, session):
        msg.payload.pop("iban")
        return DeadLetter("no")

    drain(queue, handler, engine, DrainLimits(idle_ms=50))

    ((_, fields),) = client.xrange(dead_letter_stream(stream))
    assert json.loads(fields[b"data"])["envelope"]["payload"] == {"n": 0, "iban": "DE02"}


@pytest.mark.parametrize("reason", [None, ValueError("no stock"), 404])
def test_a_dead_letter_with_a_reason_that_is_no_text_ends_no_drain(make_queue, engine, reason):
    queue = make_queue()
    ids = queue.enqueue_many([{"n": 0}, {"n": 1}])

    def handler(msg, session):
        if msg.payload["n"] == 0:
            return DeadLetter(reason)
        write_effect(msg, session)
        return None

    with suppress(DrainError):
        drain(queue, handler, engine, DrainLimits(idle_ms=50))

    assert effect_ids(engine) == ids[1:]


def test_an_inbox_that_fails_while_a_message_is_given_up_leaves_it_free_for_others(
    make_queue, engine, client, stream
):
    queue = make_queue()
    queue.enqueue({"n": 0})
    queue.read(50)
    inbox = Inbox()

    def refuse(_connection, _cursor, statement, *_more):
        if statement.startswith("SELECT") and "message_key" in statement:
            raise OperationalError(statement, {}, Exception("server closed the connection"))

    event.listen(engine, "before_cursor_execute", refuse)
    with pytest.raises(Exception, match="closed the connection"):
        drain(queue, write_effect, engine, DrainLimits(idle_ms=50, max_deliveries=1), inbox=inbox)

    ((_, _, idle),) = pending(client, stream).values()
    assert idle > 10**9


def test_a_dead_letter_is_counted_as_one_when_the_read_after_it_fails(make_queue, engine, monkeypatch):
    queue = make_queue()
    queue.enqueue({"n": 0})
    read = queue.ack_and_read

    def fails_later(acks, *more):
        if dead:
            raise QueueError("XREADGROUP", stream=queue.config.stream_key, group=GROUP, reason="gone")
        return read(acks, *more)

    dead = []

    def handler(msg, session):
        dead.append(msg.id)
        return DeadLetter("no")

    monkeypatch.setattr(queue, "ack_and_read", fails_later)
    with pytest.raises(QueueError) as caught:
        drain(queue, handler, engine, DrainLimits(idle_ms=50))

    report = report_of(caught.value)
    assert (report.dead_lettered, report.claimed_by_others) == (1, 0)


def test_the_span_of_a_message_that_run_refuses_does_not_say_that_it_was_handled(make_queue, engine, spans):
    queue = make_queue()
    queue.enqueue({"n": 1})

    with pytest.raises(MessageRejectedError):
        QueueConsumer(queue).run(handler=lambda _msg, _session: Retry(), engine=engine)

    assert spans.one("process").attributes["conquiet.outcome"] != "handled"


def test_a_report_of_a_drain_that_could_not_settle_adds_up(make_queue, engine, client, stream):
    queue = make_queue()
    queue.enqueue_many([{"n": n} for n in range(8)])
    client.set(dead_letter_stream(stream), "not a stream")

    def handler(msg, session):
        time.sleep(0.15)
        return DeadLetter("broken")

    with pytest.raises(QueueError) as caught:
        drain(queue, handler, engine, DrainLimits(idle_ms=50))

    found = report_of(caught.value)
    parts = ("handled", "skipped", "failed", "retried", "dead_lettered", "handed_back", "claimed_by_others")
    assert found.read == sum(getattr(found, part) for part in parts)
    assert found.dead_lettered == 0
