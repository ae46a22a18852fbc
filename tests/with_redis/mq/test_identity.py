"""What the inbox knows a message by: neither an id that a failover reuses nor a second copy deceives it."""

from __future__ import annotations

import os

import pytest
from sqlalchemy import insert, select

from conquiet import DbSession, DrainLimits, Inbox, QueueConfig, drain
from conquiet.mq import DeadLetter, DeadLetters, HashPartitioner, Message, drain_partition
from conquiet.mq.envelope import new_id
from conquiet.mq.scripts import delay
from conquiet.mq.send.delayed import move_delayed
from conquiet.mq.send.producer import _envelope
from tests.conftest import effects

GROUP = "billing"
SHORT = DrainLimits(max_messages=100, idle_ms=50)


def write_effect(msg, session) -> None:
    session.execute(insert(effects), {"entry_id": msg.id, "note": str(msg.payload["n"])})


def effects_in(engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(select(effects.c.note)))


def drain_all(topic, engine, handler=write_effect, group=GROUP):
    return drain_partition(topic, 0, group, handler, engine, SHORT, inbox=Inbox())


def test_a_new_message_with_the_id_of_one_that_a_failover_lost_is_handled(topic, producer, engine, client):
    """The replica was promoted without the last entries, and its clock is behind: ids come again."""
    key = topic.keys.stream(0)
    lost = producer.send(topic, {"n": "lost"})
    drain_all(topic, engine)
    client.delete(key)
    envelope = _envelope(HashPartitioner(), topic, Message(payload={"n": "new"}))
    client.xadd(key, {"data": envelope.encode()}, id=lost)

    report = drain_all(topic, engine)

    assert (report.handled, report.skipped, effects_in(engine)) == (1, 0, ["lost", "new"])


def test_a_new_message_of_a_plain_stream_with_a_reused_id_is_handled_and_its_redelivery_is_not(
    make_queue, engine, client, stream
):
    queue = make_queue()
    lost = queue.enqueue({"n": "lost"})
    drain(queue, write_effect, engine, SHORT, inbox=Inbox())
    client.delete(stream)
    client.xgroup_create(stream, GROUP, "0", mkstream=True)
    client.xadd(stream, {"data": b'{"n":"new"}'}, id=lost)

    report = drain(queue, write_effect, engine, SHORT, inbox=Inbox())
    client.xgroup_setid(stream, GROUP, "0")
    again = drain(queue, write_effect, engine, SHORT, inbox=Inbox())

    assert (report.handled, again.handled, again.skipped) == (1, 0, 1)
    assert effects_in(engine) == ["lost", "new"]


def test_a_delayed_message_whose_move_was_not_replicated_has_its_effect_once(topic, producer, engine):
    """The move is made a second time on the replica that was promoted."""
    data = _envelope(HashPartitioner(), topic, Message(payload={"n": 1})).encode()
    for name in ("send:a", "send:a"):
        delay(topic, 0, name, data, 0)
        move_delayed(topic)

    report = drain_all(topic, engine)

    assert (report.handled, report.skipped, effects_in(engine)) == (1, 1, ["1"])


@pytest.mark.parametrize("groups", [1, 2])
def test_a_replay_to_all_groups_is_handled_by_those_that_have_not(topic, producer, engine, groups):
    producer.send(topic, {"n": 1})
    drain_all(topic, engine, lambda _msg, _session: DeadLetter("not now"))
    if groups == 2:
        drain_all(topic, engine, group="audit")
    (letter,) = DeadLetters(topic).list().letters
    DeadLetters(topic).replay(letter.id)

    reports = [drain_all(topic, engine, group=group) for group in (GROUP, "audit")]

    # The group that begins only now reads the original too.
    assert [(report.handled, report.skipped) for report in reports] == [
        (1, 0),
        (0, 1) if groups == 2 else (1, 1),
    ]


def test_a_message_of_a_partition_is_the_same_to_a_drain_of_its_stream(
    topic, producer, engine, make_queue, client
):
    """A drain of the stream commits and dies before its ack; then the owner of the partition gets it."""
    producer.send(topic, {"n": 1})
    config = QueueConfig(topic.keys.stream(0), GROUP, "drain")
    queue = type(make_queue())(client, config)
    (msg,) = queue.read(50)
    inbox = Inbox()
    inbox.create_table(engine)
    with DbSession(engine) as session:
        assert inbox.record(session, msg)
        session.execute(insert(effects), {"entry_id": msg.id, "note": "1"})

    report = drain_all(topic, engine)

    assert (report.handled, report.skipped, effects_in(engine)) == (0, 1, ["1"])


def test_ids_of_a_forked_child_are_not_those_of_its_parent():
    new_id()
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        os.write(writable, new_id().encode())
        os._exit(0)
    os.waitpid(child, 0)

    assert os.read(readable, 100).decode().partition("-")[0] != new_id().partition("-")[0]
