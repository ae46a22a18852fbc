"""Dead letters of plain streams: shown as those of topics are, and replayed to their group alone."""

from __future__ import annotations

import base64
import json

import pytest
import redis
from prometheus_client import CollectorRegistry

from conquiet import DrainLimits, EmbeddedServer, Inbox, QueueConfig, RedisStreamsQueue, drain
from conquiet.mq import DeadLetter, DeadLetters, MqCollector, TopicError, Topics
from conquiet.mq.scripts import script
from conquiet.operations import diagnose, take_samples, topic_facts
from conquiet.queue import open_client
from conquiet.queue.connection import key_beside
from tests.services import REDIS_KINDS, redis_server
from tests.with_redis.mq.by_hand import Hand
from tests.with_redis.mq.consuming import Seen, quick, wait_until_finished
from tests.with_redis.mq.proxy import LossyProxy

GROUP = "billing"


@pytest.fixture(scope="module", params=[*REDIS_KINDS, "cluster"])
def any_url(request):
    """Each kind of server in turn, and a cluster."""
    if request.param != "cluster":
        with redis_server(request.param) as url:
            yield url
        return
    with EmbeddedServer(cluster=3) as server:
        yield server.url


@pytest.fixture
def client(any_url):
    with open_client(any_url) as opened:
        yield opened


@pytest.fixture
def make_queue(client, stream):
    def make(consumer="worker-1", group=GROUP):
        return RedisStreamsQueue(client, QueueConfig(stream, group, consumer, block_ms=50))

    return make


@pytest.fixture
def letters(client, stream):
    return DeadLetters(Topics(client).open(stream))


@pytest.fixture
def give_up(make_queue, engine):
    """Enqueues messages that become dead letters of the group; returns the ids of the messages."""

    def gave_up(*payloads):
        queue = make_queue()
        ids = queue.enqueue_many(payloads)
        queue.read(50, count=len(ids))
        report = drained(queue, fail, engine, max_deliveries=1)
        assert report.dead_lettered == len(ids)
        return ids

    return gave_up


def fail(msg, _session):
    raise AssertionError("what was delivered too often is not handled")


def drained(queue, handler, engine, *, inbox=None, max_deliveries=None):
    return drain(queue, handler, engine, DrainLimits(idle_ms=30, max_deliveries=max_deliveries), inbox=inbox)


def test_a_letter_of_a_stream_is_shown_in_full(give_up, letters, stream):
    (entry_id,) = give_up({"n": 0})

    (letter,) = letters.list().letters

    assert letters.show(letter.id) == letter
    assert letters.count() == 1
    assert (letter.topic, letter.group, letter.partition, letter.key) == (stream, GROUP, 0, None)
    assert (letter.original_id, letter.attempts, letter.payload) == (entry_id, 2, {"n": 0})
    assert (letter.error_type, letter.error_message) == ("DeliveredTooOften", "delivered 2 times")
    assert letters.list(error_type="DeliveredTooOften", group=GROUP).letters == (letter,)
    assert letters.list(group="shipping").letters == ()


def test_letters_of_a_stream_are_seen_by_doctor_samples_and_metrics(give_up, client, stream):
    give_up({"n": 0}, {"n": 1})
    registry = CollectorRegistry()
    registry.register(MqCollector(client, [stream]))

    findings = {finding.check: finding for finding in diagnose([], [topic_facts(client, stream)])}

    assert findings["dead-letters"].level == "warning"
    assert "2 dead letters" in findings["dead-letters"].text
    assert [sample.dead_letters for sample in take_samples(client, [stream])] == [2]
    assert registry.get_sample_value("conquiet_mq_dead_letters", {"topic": stream}) == 2


def test_a_replayed_message_comes_back_under_its_own_id_and_counts_anew(give_up, letters, make_queue, engine):
    ids = give_up({"n": 0}, {"n": 1})
    seen = Seen()

    assert letters.replay_all().replayed == 2
    report = drained(make_queue("worker-2"), seen, engine)

    assert report.handled == 2
    assert seen.ids == ids
    assert {msg.delivery_count for msg in seen} == {1}
    assert letters.count() == 0


def test_a_replayed_message_is_given_to_its_group_alone(give_up, letters, make_queue, engine, client, stream):
    (entry_id,) = give_up({"n": 0})
    shipping, billing = Seen(), Seen()
    drained(make_queue(group="shipping"), shipping, engine)
    (letter,) = letters.list().letters

    assert letters.replay(letter.id) == entry_id

    drained(make_queue(group="shipping"), shipping, engine)
    drained(make_queue(), billing, engine)
    assert (shipping.ids, billing.ids) == ([entry_id], [entry_id])
    assert client.xlen(stream) == 1


def test_a_replayed_message_whose_effects_are_in_the_inbox_is_acked_without_its_handler(
    letters, make_queue, engine, client, stream
):
    queue, inbox = make_queue(), Inbox()
    queue.enqueue({"n": 1})
    seen = Seen()
    drained(queue, seen, engine, inbox=inbox)
    client.xgroup_setid(stream, GROUP, "0-0")
    drained(queue, lambda msg, session: DeadLetter("no screws"), engine)

    assert letters.replay_all().replayed == 1
    report = drained(queue, seen, engine, inbox=inbox)

    assert (report.handled, report.skipped, len(seen)) == (0, 1, 1)


def test_a_letter_of_a_stream_is_replayed_once(give_up, letters, make_queue, engine):
    give_up({"n": 0})
    (letter,) = letters.list().letters

    first, second = letters.replay(letter.id), letters.replay(letter.id)

    assert (first, second) == (letter.original_id, None)
    assert letters.replay_many([letter.id]).not_found == (letter.id,)
    assert drained(make_queue(), Seen(), engine).handled == 1


def test_a_message_that_is_pending_again_is_not_taken_from_its_consumer(
    give_up, letters, make_queue, client, stream
):
    (entry_id,) = give_up({"n": 0})
    client.xgroup_setid(stream, GROUP, "0-0")
    make_queue("busy").read(50)

    assert letters.replay_all().replayed == 1

    (row,) = client.xpending_range(stream, GROUP, "-", "+", 10)
    assert (row["message_id"].decode(), row["consumer"], row["times_delivered"]) == (entry_id, b"busy", 1)
    assert letters.count() == 0


def test_a_trimmed_message_is_replayed_as_a_copy_for_all_groups_or_not_at_all(
    give_up, letters, make_queue, engine, client, stream
):
    (entry_id,) = give_up({"n": 0})
    client.xdel(stream, entry_id)
    (letter,) = letters.list().letters

    with pytest.raises(TopicError, match=f"entry {entry_id} was trimmed.*to_all_groups"):
        letters.replay(letter.id)
    assert letters.replay_all(dry_run=True).refused == letters.replay_all().refused == (letter.id,)
    assert letters.count() == 1

    new_id = letters.replay(letter.id, to_all_groups=True)
    shipping, billing = Seen(), Seen()
    drained(make_queue(group="shipping"), shipping, engine)
    drained(make_queue(), billing, engine)
    assert [(msg.id, msg.payload) for msg in shipping] == [(new_id, {"n": 0})]
    assert [(msg.id, msg.payload) for msg in billing] == [(new_id, {"n": 0})]
    assert letters.count() == 0


def test_a_payload_that_looks_like_an_envelope_is_copied_as_it_was(give_up, letters, make_queue, engine):
    payload = {"schemaVersion": 1, "id": "7", "payload": {"n": 1}, "more": "x"}
    give_up(payload)
    (letter,) = letters.list().letters
    seen = Seen()

    letters.replay(letter.id, to_all_groups=True)
    drained(make_queue(), seen, engine)

    assert letter.payload == payload
    assert [msg.payload for msg in seen] == [payload]


def test_a_letter_whose_group_was_deleted_is_refused(give_up, letters, client, stream):
    give_up({"n": 0})
    client.xgroup_destroy(stream, GROUP)
    (letter,) = letters.list().letters

    with pytest.raises(TopicError, match=f"has no group '{GROUP}'"):
        letters.replay(letter.id)

    assert letters.replay_all(dry_run=True).refused == letters.replay_all().refused == (letter.id,)
    assert letters.count() == 1


def test_a_malformed_letter_is_shown_and_not_replayed(give_up, letters, make_queue, client, stream):
    (entry_id,) = give_up({"n": 0})
    queue = make_queue()
    letters.purge(older_than_ms=0)
    fields = [[base64.b64encode(part).decode() for part in (b"\xfe", b"\xff")]]
    letter = {"topic": stream, "group": GROUP, "partition": 0, "originalMessageId": entry_id}
    letter |= {"errorType": "Malformed", "errorMessage": "no data", "fieldsBase64": fields}
    client.xadd(key_beside(stream, "dlq"), {"data": json.dumps(letter)})
    client.xadd(key_beside(stream, "dlq"), {"other": "fields"})
    nameless = {"group": GROUP, "partition": 0, "envelope": {"schemaVersion": 1, "payload": {}}}
    client.xadd(key_beside(stream, "dlq"), {"data": json.dumps(nameless)})
    malformed, unreadable, of_no_entry = letters.list().letters

    with pytest.raises(TopicError, match="contains no message"):
        letters.replay(malformed.id)

    assert malformed.raw_fields == ((b"\xfe", b"\xff"),)
    assert unreadable.raw_fields == ((b"other", b"fields"),)
    assert letters.replay_all().refused == (malformed.id, unreadable.id, of_no_entry.id)
    assert queue.backlog_stats().pending == 0


def test_letters_of_a_stream_are_purged(give_up, letters):
    give_up({"n": 0}, {"n": 1}, {"n": 2})
    first, *_ = letters.list().letters

    assert letters.purge([first.id]) == 1
    assert letters.purge(older_than_ms=0, dry_run=True) == 2
    assert letters.purge(older_than_ms=0) == 2
    assert letters.count() == 0


def test_letters_outlive_their_stream_and_a_name_without_either_is_refused(give_up, letters, client, stream):
    give_up({"n": 0})
    client.delete(stream)

    assert letters.count() == 1
    letters.purge(older_than_ms=0)
    client.delete(key_beside(stream, "dlq"))
    with pytest.raises(TopicError, match="neither a topic nor a stream"):
        letters.list()


def test_a_consumer_of_partitions_that_runs_takes_what_is_replayed(client, stream, letters, start):
    client.xadd(stream, {"data": '{"n": 1}'})
    topic = Topics(client).open(stream)
    hand = Hand(topic)
    (given_up,) = hand.give_up()
    hand.let_go()
    seen = Seen()
    start(topic, seen, config=quick())
    later = client.xadd(stream, {"data": '{"n": 2}'}).decode()
    wait_until_finished(topic)

    assert letters.replay_all().replayed == 1

    wait_until_finished(topic)
    assert [(msg.id, msg.payload, msg.attempt) for msg in seen] == [
        (later, {"n": 2}, 1),
        (given_up.id, {"n": 1}, 1),
    ]


@pytest.mark.parametrize("any_url", REDIS_KINDS, indirect=True)
def test_a_replay_that_the_client_repeats_because_its_reply_was_lost_is_reported_as_done(
    any_url, give_up, letters, client, stream
):
    first_id, second_id = give_up({"n": 0}, {"n": 1})
    first, second = (letter.id for letter in letters.list().letters)
    digest = client.script_load(script("replay_in_place").text).encode()

    with LossyProxy(any_url) as proxy, redis.Redis(port=proxy.port) as lossy:
        repeating = DeadLetters(Topics(lossy).open(stream))
        proxy.lose_reply_to(digest)
        replayed_id = repeating.replay(first)
        proxy.lose_reply_to(digest)
        report = repeating.replay_many([first, second])
        assert proxy.lost == 2

    pending = [row["message_id"].decode() for row in client.xpending_range(stream, GROUP, "-", "+", 10)]
    assert (replayed_id, pending) == (first_id, [first_id, second_id])
    assert (report.replayed, report.not_found, letters.count()) == (1, (first,), 0)
