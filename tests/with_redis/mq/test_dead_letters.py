"""Dead letters: listed whatever is in them, replayed once and to where they came from."""

from __future__ import annotations

import threading
import time

import pytest
import redis

from conquiet import QueueError
from conquiet.mq import DeadLetter, DeadLetters, Envelope, RetryPolicy, TopicError, Topics
from tests.eventually import eventually
from tests.with_redis.mq.by_hand import NOW_MS, Hand
from tests.with_redis.mq.consuming import (
    GROUP,
    Seen,
    dead_letters,
    expire,
    pending,
    quick,
    wait_until_finished,
)


class OutOfStockError(Exception):
    """An error of a module, to be found by its full or its short name."""


@pytest.fixture
def letters(topic):
    return DeadLetters(topic)


@pytest.fixture
def hand(topic):
    return Hand(topic)


@pytest.fixture
def give_up(hand, send):
    """Sends messages that become dead letters; returns the ids of the messages."""

    def gave_up(count, error=None):
        ids = send(count)
        hand.give_up(error)
        return ids

    return gave_up


def test_a_letter_tells_what_failed_where_and_why(topic, letters, producer):
    entry_id = producer.send(topic.name, {"n": 1}, key="customer-7", headers={"trace": "abc"})
    Hand(topic, owner="worker-9").give_up(OutOfStockError("no screws"))

    (letter,) = letters.list().letters

    assert letters.show(letter.id) == letter
    assert (letter.topic, letter.group, letter.partition) == (topic.name, GROUP, 0)
    assert (letter.key, letter.headers, letter.payload) == ("customer-7", {"trace": "abc"}, {"n": 1})
    assert (letter.original_id, letter.attempts, letter.last_consumer) == (entry_id, 1, "worker-9")
    assert (letter.first_delivered_at_ms, letter.last_delivered_at_ms) == (NOW_MS, NOW_MS + 1)
    assert letter.error_type == f"{OutOfStockError.__module__}.OutOfStockError"
    assert letter.error_message == "no screws"
    assert "OutOfStockError: no screws" in letter.traceback


def test_pages_show_every_letter_once_in_order(give_up, letters):
    ids = give_up(25)

    seen, after, pages = [], None, 0
    while pages == 0 or after:
        page = letters.list(limit=10, after=after)
        seen += [letter.original_id for letter in page.letters]
        after, pages = page.after, pages + 1

    assert seen == ids
    assert pages == 3
    assert letters.count() == 25


def test_a_topic_without_dead_letters_has_none_and_gets_no_key(letters, topic):
    assert letters.list().letters == ()
    assert letters.count() == letters.purge(older_than_ms=0) == 0
    assert letters.replay_all().replayed == 0
    assert not topic.client.exists(topic.keys.dead_letters(0))


@pytest.mark.parametrize("wanted", ["OutOfStockError", f"{OutOfStockError.__module__}.OutOfStockError"])
def test_letters_are_found_by_the_type_of_their_error(give_up, letters, wanted):
    give_up(3)
    ids = give_up(2, OutOfStockError())

    found = letters.list(error_type=wanted).letters

    assert [letter.original_id for letter in found] == ids
    assert letters.list(error_type="StockError").letters == ()


def test_letters_are_found_by_their_group_and_time(topic, send, letters):
    send(1)
    for group in (GROUP, "shipping"):
        Hand(topic, group=group).give_up()
    first, second = letters.list().letters
    first_ms, second_ms = (int(letter.id.partition("-")[0]) for letter in (first, second))

    assert letters.list(group="shipping").letters == (second,)
    assert letters.list(since_ms=first_ms, until_ms=second_ms).letters == (first, second)
    assert letters.list(since_ms=second_ms + 1).letters == ()
    assert letters.list(until_ms=first_ms - 1).letters == ()


def test_a_letter_that_cannot_be_read_does_not_hide_the_others(topic, give_up, letters):
    give_up(1)
    dead_letters = topic.keys.dead_letters(0)
    topic.client.xadd(dead_letters, {"data": b"\xff", "more": "x"})
    topic.client.xadd(dead_letters, {"data": '{"partition": "zero", "fieldsBase64": 7}'})
    give_up(1)

    first, unreadable, odd, last = letters.list().letters

    assert first.payload == last.payload == {"n": 0}
    assert unreadable.error_type == "UnreadableLetter"
    assert unreadable.raw_fields == ((b"data", b"\xff"), (b"more", b"x"))
    assert (odd.partition, odd.payload) == (None, None)


def test_a_malformed_entry_is_kept_byte_by_byte_and_not_replayed(topic, letters, client):
    client.xadd(topic.keys.stream(0), {b"\xfe": b"\xff"})
    Hand(topic).give_up()
    (letter,) = letters.list().letters

    with pytest.raises(
        TopicError, match=f"cannot replay its dead letter {letter.id}: it contains no message"
    ):
        letters.replay(letter.id)

    assert letter.raw_fields == ((b"\xfe", b"\xff"),)
    assert letters.replay_all().refused == (letter.id,)
    assert letters.count() == 1


def test_a_letter_is_replayed_once_however_often_it_is_asked_for(topic, give_up, letters):
    give_up(1)
    (letter,) = letters.list().letters

    first, second = letters.replay(letter.id), letters.replay(letter.id)

    assert first is not None
    assert second is None
    assert letters.replay_many([letter.id]).not_found == (letter.id,)
    assert topic.client.xlen(topic.keys.stream(0)) == 2
    assert letters.count() == 0


def test_of_many_that_replay_at_once_each_letter_is_added_once(topic, give_up, letters):
    give_up(40)
    reports = []
    threads = [threading.Thread(target=lambda: reports.append(letters.replay_all())) for _ in range(4)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(report.replayed for report in reports) == 40
    assert topic.client.xlen(topic.keys.stream(0)) == 80


def test_a_replayed_message_goes_back_to_its_partition_and_says_where_it_comes_from(wide, producer):
    entry_id = producer.send(wide.name, {"n": 1}, key="customer-7", partition=3)
    hand = Hand(wide, partition=3)
    hand.give_up()
    letters = DeadLetters(wide)
    (letter,) = letters.list().letters

    new_id = letters.replay(letter.id)

    (msg,) = hand.read()
    assert (msg.id, msg.payload, msg.key, msg.attempt) == (new_id, {"n": 1}, "customer-7", 1)
    assert msg.envelope.replayed_from == letter.id
    assert msg.envelope.original_id == entry_id
    assert [wide.client.xlen(wide.keys.stream(partition)) for partition in wide.partitions] == [0, 0, 0, 2]


def test_a_message_that_dies_again_keeps_its_first_id(topic, give_up, letters, hand):
    (entry_id,) = give_up(1)
    letters.replay_all()
    hand.give_up()

    (letter,) = letters.list().letters

    assert letter.original_id == entry_id


def test_a_replayed_message_is_handled_by_the_group_that_gave_it_up_alone(
    topic, give_up, letters, start, hand
):
    (entry_id,) = give_up(1)
    billing, shipping = Seen(), Seen()
    hand.let_go()

    letters.replay_all()

    start(topic, billing)
    start(topic, shipping, group="shipping")
    for group in (GROUP, "shipping"):
        wait_until_finished(topic, group)
    assert [msg.envelope.original_id for msg in billing] == [entry_id]
    assert shipping.ids == [entry_id]


def test_a_replay_can_be_for_all_groups(topic, give_up, letters, hand):
    give_up(1)
    (letter,) = letters.list().letters

    letters.replay(letter.id, to_all_groups=True)

    (msg,) = hand.read()
    assert msg.envelope.for_group is None


def test_replay_all_ends_although_every_message_fails_at_once(topic, send, letters, start):
    def broken(_msg):
        raise OutOfStockError

    send(60)
    start(topic, broken, config=quick(retry=RetryPolicy(max_attempts=1)))
    eventually(lambda: letters.count() == 60)

    report = letters.replay_all(per_second=200)

    assert report.replayed == 60


def test_a_dry_run_and_a_limit_count_and_change_no_more(topic, give_up, letters):
    give_up(5)
    give_up(4, OutOfStockError())

    dry = letters.replay_all(error_type="OutOfStockError", dry_run=True)
    some = letters.replay_all(error_type="OutOfStockError", limit=3)

    assert (dry.replayed, dry.is_dry_run) == (4, True)
    assert (some.replayed, letters.count()) == (3, 6)
    assert topic.client.xlen(topic.keys.stream(0)) == 9 + 3


def test_a_letter_that_is_refused_does_not_use_up_the_limit(topic, give_up, letters, client, hand):
    client.xadd(topic.keys.stream(0), {"no": "message"})
    hand.give_up()
    give_up(2)

    reports = [letters.replay_all(limit=1) for _ in range(2)]

    assert [report.replayed for report in reports] == [1, 1]
    assert letters.count() == 1


def test_a_replay_keeps_to_its_rate(give_up, letters):
    give_up(4)
    started = time.monotonic()

    letters.replay_all(per_second=20)

    assert time.monotonic() - started >= 3 / 20


def test_letters_are_purged_by_id_or_by_age_and_only_told_in_a_dry_run(give_up, letters, topic):
    give_up(5)
    topic.client.xadd(topic.keys.dead_letters(0), {"data": "{}"})
    first, second, *_ = (letter.id for letter in letters.list().letters)

    assert letters.purge([first, second, first], dry_run=True) == 2
    assert letters.count() == 6
    assert letters.purge([first, second]) == 2
    assert letters.purge(older_than_ms=60_000) == 0
    eventually(lambda: letters.purge(older_than_ms=1, dry_run=True) == 4)
    assert letters.purge(older_than_ms=1) == 4
    assert letters.count() == 0


def test_letters_are_purged_up_to_a_time_and_later_ones_stay(give_up, letters):
    give_up(1)
    until_ms = int(letters.list().letters[0].id.partition("-")[0])
    eventually(lambda: letters.topic.client.time()[0] * 1000 > until_ms + 1000)
    give_up(2)

    assert letters.purge(until_ms=until_ms - 1) == 0
    assert letters.purge(until_ms=until_ms, dry_run=True) == 1
    assert letters.purge(until_ms=until_ms) == 1
    assert letters.count() == 2


def test_what_cannot_be_asked_is_refused(letters):
    with pytest.raises(ValueError, match="purge needs letter_ids or older_than_ms"):
        letters.purge()
    with pytest.raises(ValueError, match="must look like"):
        letters.show("newest")
    with pytest.raises(ValueError, match="per_second must be above 0"):
        letters.replay_all(per_second=0)
    with pytest.raises(TopicError, match="has no dead letter 1-0; it may have been replayed or purged"):
        letters.show("1-0")


def test_a_letter_of_a_partition_that_the_topic_never_had_is_refused(topic, letters, give_up):
    envelope = Envelope(topic=topic.name, partition=7, payload={}).encode().decode()
    text = f'{{"partition": 7, "group": "billing", "envelope": {envelope}}}'
    letter_id = topic.client.xadd(topic.keys.dead_letters(0), {"data": text}).decode()

    with pytest.raises(TopicError, match="has no partition 7"):
        letters.replay(letter_id)

    assert letters.count() == 1


def test_a_redis_failure_is_a_queue_error(topic, letters):
    topic.client.set(topic.keys.dead_letters(0), "no stream")

    for call in (letters.list, letters.count, letters.replay_all, lambda: letters.show("1-0")):
        with pytest.raises(QueueError, match="WRONGTYPE") as caught:
            call()
        assert isinstance(caught.value.__cause__, redis.ResponseError)


def test_a_letter_of_a_partition_that_came_later_goes_back_to_it(topic, topics, letters, producer, client):
    grown = topics.grow(topic.name, 2)
    producer.send(topic.name, {"n": 2}, partition=1)
    Hand(grown, 1).give_up()

    assert letters.replay_all().replayed == 1
    assert client.xlen(grown.keys.stream(1)) == 2


def test_the_letters_of_a_topic_that_was_deleted_are_refused_and_not_told_as_none(topic, topics, letters):
    topics.delete(topic.name)

    with pytest.raises(TopicError, match="was deleted"):
        letters.count()


def test_letters_of_a_bare_stream_are_found(client, stream):
    client.xadd(stream, {"data": '{"n": 1}'})
    topic = Topics(client).open(stream)
    hand = Hand(topic)
    hand.give_up()
    letters = DeadLetters(topic)

    assert letters.replay_all().replayed == 1

    (msg,) = hand.leased.take_due(10).batch.messages
    assert (msg.payload, msg.attempt) == ({"n": 1}, 1)
    client.delete(stream)


def test_a_message_whose_dead_letter_cannot_be_written_stays_pending(topic, send, start, client):
    ids = send(2)
    client.set(topic.keys.dead_letters(0), "not a stream")

    running = start(topic, lambda msg: DeadLetter("never"), config=quick(max_outage_s=0.5))
    running.join()

    assert isinstance(running.error, QueueError)
    assert sorted(pending(topic)) == ids
    client.delete(topic.keys.dead_letters(0))
    expire(topic)
    start(topic, lambda msg: DeadLetter("never"), config=quick(retry=RetryPolicy(max_attempts=99)))
    wait_until_finished(topic)
    assert sorted(letter["originalMessageId"] for letter in dead_letters(topic)) == ids


def test_a_replayed_message_has_all_its_attempts_again(topic, send, letters, start):
    send(1)
    attempts: list[int] = []

    def fail_five_times(msg):
        attempts.append(msg.attempt)
        if len(attempts) <= 5:
            raise OutOfStockError

    start(topic, fail_five_times)
    eventually(lambda: letters.count() == 1)

    letters.replay_all()

    wait_until_finished(topic)
    assert attempts == [1, 2, 3, 1, 2, 3]
    assert letters.count() == 0


@pytest.mark.parametrize(
    "which", [{"errortype": "ValueError"}, {"groups": GROUP}, {"error_type": None}, {"since_ms": "1"}]
)
def test_a_filter_that_does_not_exist_is_refused_and_selects_nothing(give_up, letters, which):
    give_up(2)

    for call in (letters.replay_all, letters.list):
        with pytest.raises(TypeError, match=next(iter(which))):
            call(**which)

    assert letters.count() == 2


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "5", True])
def test_a_rate_that_is_none_is_refused_and_replays_nothing(give_up, letters, value):
    give_up(2)
    ids = [letter.id for letter in letters.list().letters]

    for call in (letters.replay_all, lambda **rate: letters.replay_many(ids, **rate)):
        with pytest.raises((TypeError, ValueError), match="per_second"):
            call(per_second=value)

    assert letters.count() == 2


def test_one_id_instead_of_several_is_refused(give_up, letters):
    give_up(1)
    [letter] = letters.list().letters

    for call in (letters.replay_many, letters.purge):
        with pytest.raises(TypeError, match="letter_ids"):
            call(letter.id)

    assert letters.count() == 1
