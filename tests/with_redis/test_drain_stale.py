"""drain_stale: the recovery of what dead workers left, and the dead letters of what kills them."""

from __future__ import annotations

import base64
import json

import pytest
from sqlalchemy import insert, select, text

from conquiet import (
    DbSession,
    DeadLetter,
    DrainError,
    DrainLimits,
    Inbox,
    MalformedEntryError,
    QueueError,
    QueueMessage,
    drain_stale,
)
from conquiet.consume import dead_letter_stream
from conquiet.consume.presence import Presence
from conquiet.consume.stream_channel import StreamChannel
from conquiet.errors import DatabaseUnavailableError
from tests.conftest import effects
from tests.reports import report_of

GROUP = "billing"


def write_effect(msg, session) -> None:
    session.execute(insert(effects), {"entry_id": msg.id, "note": str(msg.payload)})


def effect_ids(engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(select(effects.c.entry_id)))


def pending(client, stream) -> list[str]:
    return [row["message_id"].decode() for row in client.xpending_range(stream, GROUP, "-", "+", 1_000)]


@pytest.fixture
def abandoned(make_queue, client, stream):
    """Leaves messages pending at a dead consumer, idle for two minutes."""

    def leave(count: int, deliveries: int = 1) -> list[str]:
        ids = make_queue("dead").enqueue_many([{"n": n} for n in range(count)])
        make_queue("dead").read(50, count=count)
        client.xclaim(stream, GROUP, "dead", 0, ids, idle=120_000, retrycount=deliveries)
        return ids

    return leave


def test_stale_messages_are_claimed_handled_and_acked(make_queue, engine, client, stream, abandoned):
    ids = abandoned(130)

    report = drain_stale(make_queue(), write_effect, engine, DrainLimits(max_messages=1_000))

    assert effect_ids(engine) == ids
    assert pending(client, stream) == []
    assert (report.read, report.handled, report.stopped_by) == (130, 130, "idle")


def test_messages_that_are_not_idle_long_enough_are_left_alone(make_queue, engine, client, stream):
    make_queue().enqueue({"n": 1})
    make_queue("busy").read(50)

    report = drain_stale(make_queue(), write_effect, engine, DrainLimits(max_messages=10))

    assert report.read == 0
    assert len(pending(client, stream)) == 1


def test_new_messages_are_left_to_others(make_queue, engine):
    queue = make_queue()
    queue.enqueue({"n": 1})

    report = drain_stale(queue, write_effect, engine, DrainLimits(max_messages=10), min_idle_ms=0)

    assert report.read == 0
    assert queue.backlog_stats().lag == 1


def test_it_is_bounded_by_max_messages(make_queue, engine, client, stream, abandoned):
    ids = abandoned(25)

    report = drain_stale(make_queue(), write_effect, engine, DrainLimits(max_messages=12))

    assert (report.handled, report.stopped_by) == (12, "max_messages")
    assert pending(client, stream) == ids[12:]


def test_a_failure_is_tried_once_in_one_drain_even_if_everything_counts_as_stale(
    make_queue, engine, abandoned
):
    abandoned(5)
    calls = []

    def handler(msg, session):
        calls.append(msg.id)
        raise ValueError

    with pytest.raises(DrainError):
        drain_stale(
            make_queue(), handler, engine, DrainLimits(max_messages=100, on_error="continue"), min_idle_ms=0
        )

    assert len(calls) == len(set(calls)) == 5


def test_what_was_claimed_and_not_begun_is_handed_back(make_queue, engine, client, stream, abandoned):
    first, *_ = abandoned(5, deliveries=2)

    def handler(msg, session):
        # The first is claimed alone, all others together.
        if msg.id != first:
            raise ValueError

    with pytest.raises(ValueError) as caught:  # noqa: PT011 -- the handler's own
        drain_stale(make_queue(), handler, engine, DrainLimits(max_messages=5, on_error="raise"))

    counts = [row["times_delivered"] for row in client.xpending_range(stream, GROUP, "-", "+", 10)]
    assert counts == [3, 2, 2, 2]
    assert report_of(caught.value).handed_back == 3


def test_entries_that_were_deleted_do_not_hide_the_ones_behind_them(
    make_queue, engine, client, stream, abandoned
):
    ids = abandoned(40)
    client.xdel(stream, *ids[:30])

    report = drain_stale(make_queue(), write_effect, engine, DrainLimits(max_messages=100))

    assert effect_ids(engine) == ids[30:]
    assert report.handled == 10


def give_up(queue, msg):
    """Make it a dead letter, as a drain does when its handler says so; returns whether it became one."""
    with Presence(queue) as presence:
        channel = StreamChannel.for_drain(presence, DrainLimits(), ())
        settlement = channel.decide(msg, DeadLetter("by hand"), 0.0)
        channel.settle([settlement])
    return not settlement.is_refused


def test_without_max_deliveries_nothing_is_dead_lettered(make_queue, engine, client, stream, abandoned):
    abandoned(1, deliveries=1_000)

    report = drain_stale(make_queue(), write_effect, engine, DrainLimits(max_messages=10))

    assert report.handled == 1
    assert client.exists(dead_letter_stream(stream)) == 0


def test_a_message_delivered_too_often_is_moved_to_the_dead_letters_with_all_that_is_known(
    make_queue, engine, client, stream, abandoned
):
    (poison,) = abandoned(1, deliveries=3)

    report = drain_stale(make_queue(), write_effect, engine, DrainLimits(max_messages=10, max_deliveries=3))

    assert (report.read, report.handled, report.dead_lettered) == (1, 0, 1)
    assert (effect_ids(engine), pending(client, stream)) == ([], [])
    ((_, fields),) = client.xrange(dead_letter_stream(stream))
    kept = json.loads(fields[b"data"])
    place = (kept["topic"], kept["group"], kept["partition"], kept["originalMessageId"], kept["attempts"])
    assert place == (stream, GROUP, 0, poison, 4)
    assert kept["envelope"]["payload"] == {"n": 0}
    assert (kept["errorType"], kept["errorMessage"]) == ("DeliveredTooOften", "delivered 4 times")


@pytest.mark.parametrize("inbox", [Inbox(), True])
def test_a_committed_message_is_acked_instead_of_dead_lettered(
    make_queue, engine, client, stream, abandoned, inbox
):
    done, failing = abandoned(2, deliveries=3)
    Inbox().create_table(engine)
    with DbSession(engine) as session:
        Inbox().record(session, QueueMessage(stream, GROUP, done, {}, data=b'{"n":0}'))

    report = drain_stale(
        make_queue(), write_effect, engine, DrainLimits(max_messages=10, max_deliveries=3), inbox=inbox
    )

    assert (report.skipped, report.dead_lettered, report.handled) == (1, 1, 0)
    assert pending(client, stream) == []
    (letter,) = client.xrange(dead_letter_stream(stream))
    assert json.loads(letter[1][b"data"])["originalMessageId"] == failing


def test_nothing_is_dead_lettered_while_the_inbox_cannot_be_asked(
    make_queue, engine, client, stream, abandoned
):
    (entry_id,) = abandoned(1, deliveries=3)
    inbox = Inbox()

    def drop_inbox() -> bool:
        with engine.begin() as connection:
            connection.execute(text("DROP TABLE IF EXISTS conquiet_inbox"))
        return False

    with pytest.raises(DatabaseUnavailableError, match="the inbox could not be asked"):
        drain_stale(
            make_queue(),
            write_effect,
            engine,
            DrainLimits(max_messages=10, max_deliveries=3, should_stop=drop_inbox),
            inbox=inbox,
        )

    assert pending(client, stream) == [entry_id]
    assert client.xlen(dead_letter_stream(stream)) == 0


def test_a_message_at_the_limit_is_handled_once_more(make_queue, engine, abandoned):
    abandoned(1, deliveries=2)

    report = drain_stale(make_queue(), write_effect, engine, DrainLimits(max_messages=10, max_deliveries=3))

    assert (report.handled, report.dead_lettered) == (1, 0)


def test_a_malformed_entry_is_dead_lettered_with_its_raw_bytes(make_queue, engine, client, stream):
    raw = b"\xff\x00 not text"
    bad = client.xadd(stream, {"data": raw}).decode()
    with pytest.raises(MalformedEntryError):
        make_queue("dead").read(50)
    client.xclaim(stream, GROUP, "dead", 0, [bad], idle=120_000, retrycount=5)

    report = drain_stale(
        make_queue(),
        write_effect,
        engine,
        DrainLimits(max_messages=10, max_deliveries=3),
    )

    assert (report.dead_lettered, report.failed, pending(client, stream)) == (1, 0, [])
    ((_, fields),) = client.xrange(dead_letter_stream(stream))
    ((name, value),) = json.loads(fields[b"data"])["fieldsBase64"]
    assert (base64.b64decode(name), base64.b64decode(value)) == (b"data", raw)


def test_a_malformed_entry_below_the_limit_fails_the_drain_and_stays_pending(
    make_queue, engine, client, stream
):
    client.xadd(stream, {"other": "1"})
    with pytest.raises(MalformedEntryError):
        make_queue("dead").read(50)

    with pytest.raises(DrainError):
        drain_stale(make_queue(), write_effect, engine, DrainLimits(max_messages=10), min_idle_ms=0)

    assert len(pending(client, stream)) == 1


def test_a_payload_that_its_handler_made_unwritable_is_dead_lettered_as_it_came(make_queue, client, stream):
    client.xadd(stream, {"data": "{}"})
    queue = make_queue()
    (msg,) = queue.read(50)
    msg.payload["half"] = "\ud800"

    assert give_up(queue, msg)

    ((_, fields),) = client.xrange(dead_letter_stream(stream))
    assert json.loads(fields[b"data"])["envelope"]["payload"] == {}


def test_a_message_that_another_consumer_has_taken_is_not_dead_lettered(make_queue, client, stream):
    queue = make_queue()
    queue.enqueue({"n": 1})
    (msg,) = queue.read(50)
    make_queue("thief").claim_stale(0)

    assert not give_up(queue, msg)

    assert client.exists(dead_letter_stream(stream)) == 0
    assert pending(client, stream) == [msg.id]


def test_a_dead_letter_that_cannot_be_written_leaves_the_message_pending(make_queue, client, stream):
    queue = make_queue()
    queue.enqueue({"n": 1})
    (msg,) = queue.read(50)
    client.set(dead_letter_stream(stream), "not a stream")

    with pytest.raises(QueueError, match="WRONGTYPE"):
        give_up(queue, msg)

    assert pending(client, stream) == [msg.id]
