"""A replay is told as it was, and what it adds is handled, whatever the original did."""

from __future__ import annotations

import pytest
import redis
from sqlalchemy import insert, select

from conquiet import Inbox
from conquiet.mq import DeadLetter, DeadLetters, MqAdmin, RetryPolicy, TopicError, Topics
from conquiet.mq.scripts import script
from tests.conftest import effects
from tests.eventually import eventually
from tests.with_redis.mq.by_hand import Hand
from tests.with_redis.mq.consuming import quick, wait_until_finished
from tests.with_redis.mq.proxy import LossyProxy


@pytest.fixture
def letters(topic):
    return DeadLetters(topic)


class Shipping:
    """Handles every message, but fails with what is replayed as often as it is told."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def __call__(self, msg, session):
        session.execute(insert(effects), {"entry_id": msg.id, "note": "shipping"})
        if msg.envelope.replayed_from is not None and self.failures > 0:
            self.failures -= 1
            raise ConnectionError("the printer is away")


def give_up_first(msg, _session):
    return DeadLetter("no") if msg.envelope.replayed_from is None else None


def shipped(engine):
    with engine.connect() as connection:
        return connection.scalars(select(effects.c.entry_id)).all()


@pytest.mark.parametrize("mode", ["in_place", "requeue"])
def test_replayed_to_all_groups_it_is_handled_once_more_by_those_that_had_handled_it(
    topic, send, letters, start, engine, mode
):
    (first_id,) = send(1)
    for group, handler in (("billing", give_up_first), ("shipping", Shipping(failures=1))):
        start(topic, handler, group=group, engine=engine, inbox=Inbox(), config=quick(retry_mode=mode))
    eventually(lambda: letters.count() == 1 and shipped(engine) == [first_id])

    assert letters.replay_all(to_all_groups=True).replayed == 1

    eventually(lambda: len(shipped(engine)) == 2)
    for group in ("billing", "shipping"):
        wait_until_finished(topic, group)
    assert letters.count() == 0


def test_what_dies_after_a_replay_to_all_groups_is_handled_when_it_is_replayed_again(
    topic, send, letters, start, engine
):
    (first_id,) = send(1)
    config = quick(retry=RetryPolicy(max_attempts=1))
    for group, handler in (("billing", give_up_first), ("shipping", Shipping(failures=1))):
        start(topic, handler, group=group, engine=engine, inbox=Inbox(), config=config)
    eventually(lambda: letters.count() == 1 and shipped(engine) == [first_id])
    letters.replay_all(to_all_groups=True)
    eventually(lambda: [letter.group for letter in letters.list().letters] == ["shipping"])

    assert letters.replay_all().replayed == 1

    eventually(lambda: len(shipped(engine)) == 2)
    assert letters.count() == 0


def test_a_replay_that_the_client_repeats_because_its_reply_was_lost_is_told_as_done(
    topic, send, letters, server_url, client
):
    send(3)
    Hand(topic).give_up()
    first, second, _ = (letter.id for letter in letters.list().letters)
    digest = client.script_load(script("replay").text).encode()

    with LossyProxy(server_url) as proxy, redis.Redis(port=proxy.port) as lossy:
        repeating = DeadLetters(Topics(lossy).open(topic.name))
        proxy.lose_reply_to(digest)
        new_id = repeating.replay(first)
        proxy.lose_reply_to(digest)
        report = repeating.replay_many([first, second])
        assert proxy.lost == 2

    entries = client.xrange(topic.keys.stream(0))
    assert new_id == entries[3][0].decode()
    assert (report.replayed, report.not_found) == (1, (first,))
    assert (len(entries), letters.count()) == (5, 1)


def test_a_letter_whose_group_was_deleted_is_refused_and_stays(client, topic, producer):
    producer.send(topic.name, {"n": 1})
    Hand(topic, group="gone").give_up()
    hand = Hand(topic, group="shipping")
    hand.finish(hand.read())
    letters = DeadLetters(topic)
    (letter,) = letters.list().letters
    MqAdmin(client).delete_group(topic.name, "gone", force=True)

    with pytest.raises(TopicError, match=r"no group 'gone' any more.*to_all_groups adds a copy"):
        letters.replay(letter.id)
    assert letters.replay_all(dry_run=True).refused == letters.replay_all().refused == (letter.id,)
    assert letters.replay_many([letter.id]).refused == (letter.id,)
    assert (letters.count(), client.xlen(topic.keys.stream(0))) == (1, 1)

    assert letters.replay(letter.id, to_all_groups=True) is not None
    assert [msg.payload for msg in hand.read()] == [{"n": 1}]
    assert letters.count() == 0
