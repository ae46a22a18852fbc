"""Failures: tried again in place or as a copy, and dead letters when that does not help."""

from __future__ import annotations

import base64
import json
import time
from itertools import pairwise

import pytest

from conquiet.mq import Ack, DeadLetter, DeadLetters, Envelope, Message, Retry, RetryPolicy
from tests.eventually import eventually
from tests.with_redis.mq.consuming import (
    GROUP,
    SOON,
    Seen,
    dead_letters,
    pending,
    quick,
    wait_until_finished,
)


class Failing(Seen):
    """Fails until the given attempt."""

    def __init__(self, until: int) -> None:
        super().__init__()
        self.until = until

    def __call__(self, msg, *_session):
        self.append(msg)
        if msg.attempt < self.until:
            raise RuntimeError(f"failed at {msg.attempt}")


def broken(msg):
    """Never succeeds, and says why in two steps."""
    try:
        raise KeyError("cause")
    except KeyError as error:
        raise ValueError(f"no {msg.payload['n']}") from error


def test_a_failed_message_comes_back_under_its_own_id(topic, send, start):
    (entry_id,) = send(1)
    handler = Failing(until=3)

    start(topic, handler)

    wait_until_finished(topic)
    assert [(msg.id, msg.attempt) for msg in handler] == [(entry_id, 1), (entry_id, 2), (entry_id, 3)]
    assert topic.client.xlen(topic.keys.stream(0)) == 1


def test_every_retry_comes_when_it_is_due_and_not_at_the_next_look_around(topic, send, start):
    send(1)
    times = []

    def fail_nine_times(msg):
        times.append(time.monotonic())
        return Retry(delay_ms=20) if len(times) < 10 else None

    start(topic, fail_nine_times, config=quick(retry=RetryPolicy(max_attempts=20)))

    wait_until_finished(topic)
    # Looks around are a second apart; on a busy machine some of the retries may be late, but not all.
    assert min(after - before for before, after in pairwise(times[1:])) < 0.9


def test_a_retry_is_seen_by_no_other_group(topic, send, start):
    ids = send(3)
    other = Seen()
    start(topic, other, group="shipping")
    handler = Failing(until=3)

    start(topic, handler)

    wait_until_finished(topic)
    wait_until_finished(topic, "shipping")
    assert other.ids == ids
    assert len(handler) == 9


def test_nothing_is_left_behind_by_a_message_that_failed_and_then_succeeded(topic, send, start):
    send(3)

    start(topic, Failing(until=2))

    wait_until_finished(topic)
    assert not topic.client.exists(topic.keys.waiting(GROUP, 0), topic.keys.failures(GROUP, 0))


def test_others_go_on_while_a_message_waits_for_its_retry(topic, send, start):
    send(10)
    seen = Seen()

    def fail_first(msg):
        seen(msg)
        return Retry(delay_ms=300) if msg.payload["n"] == 0 and msg.attempt == 1 else None

    start(topic, fail_first)

    wait_until_finished(topic)
    assert seen.numbers() == [*range(10), 0]


def test_the_outcome_ack_is_a_success(topic, send, start):
    send(1)

    start(topic, lambda msg: Ack())

    wait_until_finished(topic)
    assert dead_letters(topic) == []


def test_the_outcome_retry_waits_as_long_as_it_says(topic, send, start, client):
    (entry_id,) = send(1)

    start(topic, lambda msg: Retry(delay_ms=60_000, reason="closed today"))

    due = eventually(lambda: client.zscore(topic.keys.waiting(GROUP, 0), entry_id))
    seconds, microseconds = client.time()
    assert 50_000 < due - seconds * 1000 - microseconds / 1000 <= 60_000
    assert pending(topic)[entry_id][1] == 1


def test_the_outcome_dead_letter_ends_the_message_at_once(topic, send, start):
    (entry_id,) = send(1)

    start(topic, lambda msg: DeadLetter("no such customer"))

    (letter,) = eventually(lambda: dead_letters(topic))
    wait_until_finished(topic)
    assert (letter["errorType"], letter["errorMessage"]) == ("DeadLetter", "no such customer")
    assert (letter["originalMessageId"], letter["attempts"]) == (entry_id, 1)


def test_after_the_last_attempt_the_dead_letter_tells_everything(topic, producer, start):
    entry_id = producer.send(topic.name, {"n": 5}, key="anna", headers={"trace": "abc"})

    running = start(topic, broken)

    (letter,) = eventually(lambda: dead_letters(topic))
    wait_until_finished(topic)
    facts = ("topic", "group", "partition", "key", "headers", "originalMessageId", "attempts", "lastConsumer")
    assert [letter[fact] for fact in facts] == [
        *(topic.name, GROUP, 0, "anna", {"trace": "abc"}, entry_id, SOON.max_attempts, running.name)
    ]
    assert (letter["errorType"], letter["errorMessage"]) == ("ValueError", "no 5")
    assert "KeyError: 'cause'" in letter["traceback"]
    assert "in broken" in letter["traceback"]
    assert letter["envelope"]["payload"] == {"n": 5}
    assert letter["firstDeliveredAt"] < letter["lastDeliveredAt"]


def test_an_error_that_is_never_retried_is_a_dead_letter_at_once(topic, send, start):
    send(1)
    policy = RetryPolicy(base_delay_ms=20, never_on=(ValueError,))

    start(topic, broken, config=quick(retry=policy))

    (letter,) = eventually(lambda: dead_letters(topic))
    assert letter["attempts"] == 1


def test_a_long_traceback_and_message_are_bounded(topic, send, start):
    send(1)

    def fail(msg):
        raise ValueError("x" * 1_000_000)

    start(topic, fail, config=quick(retry=RetryPolicy(max_attempts=1)))

    (letter,) = eventually(lambda: dead_letters(topic))
    assert len(json.dumps(letter)) < 20_000


class UnspeakableError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def test_an_exception_that_cannot_be_shown_is_a_failure_as_any_other(topic, send, start):
    send(2)

    def fail(msg):
        raise UnspeakableError

    start(topic, fail)

    eventually(lambda: len(dead_letters(topic)) == 2)
    letters = dead_letters(topic)
    wait_until_finished(topic)
    assert all("UnspeakableError" in letter["errorType"] for letter in letters)


@pytest.mark.parametrize("delay", [1.5, -1, "soon"])
def test_a_retry_with_a_delay_that_is_none_does_not_end_the_consumer(topic, send, start, delay):
    send(1)
    seen = Seen()

    def later(msg):
        seen(msg)
        if msg.attempt == 1:
            return Retry(delay_ms=delay)
        raise RuntimeError("and then it fails")

    running = start(topic, later)

    eventually(lambda: dead_letters(topic))
    wait_until_finished(topic)
    assert running.is_running


@pytest.mark.parametrize("outcome", [Ack, Retry, DeadLetter])
def test_an_outcome_that_is_a_class_and_no_instance_is_a_failure_that_says_so(
    topic, send, start, engine, outcome
):
    send(1)

    start(topic, lambda msg, _session: outcome, engine=engine)

    (letter,) = eventually(lambda: dead_letters(topic))
    assert (letter["errorType"], letter["attempts"]) == ("TypeError", SOON.max_attempts)
    assert f"handler returned the class {outcome.__name__}" in letter["errorMessage"]


MALFORMED = [
    {"data": b"\xff\xfe"},
    {"data": b"not json"},
    {"data": b"[1]"},
    {"other": b"field"},
    {"data": b'{"n": 1}', "more": b"x"},
    # An envelope of ours in name only.
    {"data": b'{"schemaVersion": 1, "payload": {}, "key": ["a"]}'},
    {"data": b'{"schemaVersion": 1, "payload": {}, "attempt": "x"}'},
    {"data": b'{"schemaVersion": 1, "payload": {}, "headers": [1]}'},
    {"data": b'{"schemaVersion": 1, "payload": {}, "timestamp": "now"}'},
    {"data": b'{"schemaVersion": 1, "payload": {}, "originalMessageId": 5}'},
]


def test_malformed_entries_are_dead_letters_with_their_bytes_and_block_nobody(topic, send, start, client):
    stream = topic.keys.stream(0)
    seen = Seen()
    bad = []
    for n, fields in enumerate(MALFORMED):
        send(1, start=n)
        bad.append(client.xadd(stream, fields).decode())

    running = start(topic, seen, config=quick(batch_size=4))

    wait_until_finished(topic)
    assert seen.numbers() == list(range(len(MALFORMED)))
    letters = sorted(dead_letters(topic), key=lambda letter: bad.index(letter["originalMessageId"]))
    assert len(letters) == len(bad)
    assert {letter["errorType"] for letter in letters} == {"Malformed"}
    for letter, fields in zip(letters, MALFORMED, strict=True):
        raw = {
            base64.b64decode(name).decode(): base64.b64decode(value) for name, value in letter["fieldsBase64"]
        }
        assert raw == fields
    assert running.is_running


#: Valid JSON whose value cannot be written again: a surrogate alone, a number beyond every float.
UNWRITABLE = [
    b'{"n": "\\ud800"}',
    b'{"n": 1e999}',
    b'{"n": NaN}',
    b'{"schemaVersion": 1, "payload": {"n": "\\ud800"}}',
]


@pytest.mark.parametrize("mode", ["in_place", "requeue"])
@pytest.mark.parametrize("data", UNWRITABLE)
def test_a_payload_that_cannot_be_written_again_is_malformed_and_kept_byte_by_byte(
    topic, send, start, client, mode, data
):
    entry_id = client.xadd(topic.keys.stream(0), {"data": data}).decode()
    send(1)
    seen = Seen()

    running = start(topic, seen, config=quick(retry_mode=mode))

    wait_until_finished(topic)
    (letter,) = dead_letters(topic)
    assert (letter["originalMessageId"], letter["errorType"]) == (entry_id, "Malformed")
    ((_, raw),) = letter["fieldsBase64"]
    assert base64.b64decode(raw) == data
    assert seen.numbers() == [0]
    assert running.is_running


def test_requeued_the_copy_is_for_its_group_alone(topic, send, start):
    (entry_id,) = send(1)
    other = Seen()
    start(topic, other, group="shipping")
    handler = Failing(until=3)

    # What was read when a lease is lost is delivered once more: that would be another number of attempts.
    start(topic, handler, config=quick(retry_mode="requeue", lease_ttl_ms=60_000))

    eventually(lambda: len(handler) == 3)
    wait_until_finished(topic)
    wait_until_finished(topic, "shipping")
    assert other.ids == [entry_id]
    assert [msg.attempt for msg in handler] == [1, 2, 3]
    assert len({msg.id for msg in handler}) == 3
    assert {msg.envelope.original_id for msg in handler[1:]} == {entry_id}
    assert {msg.envelope.id for msg in handler} == {handler[0].envelope.id}


def test_requeued_the_last_attempt_is_a_dead_letter_with_the_first_id(topic, producer, start):
    entry_id = producer.send(topic.name, {"n": 1}, key="anna")

    start(topic, broken, config=quick(retry_mode="requeue"))

    (letter,) = eventually(lambda: dead_letters(topic))
    wait_until_finished(topic)
    assert (letter["originalMessageId"], letter["attempts"]) == (entry_id, 3)
    assert (letter["key"], letter["envelope"]["payload"]) == ("anna", {"n": 1})
    assert not topic.client.exists(topic.keys.delayed(0), topic.keys.delayed_items(0))


def test_requeued_entries_of_two_partitions_with_the_same_id_both_come_back(wide, start, client):
    for partition in wide.partitions:
        data = Envelope(topic=wide.name, partition=partition, payload={"n": partition}).encode()
        client.xadd(wide.keys.stream(partition), {"data": data}, id="5-0")
    handler = Failing(until=2)

    start(wide, handler, config=quick(retry_mode="requeue"))

    eventually(lambda: sorted(handler.numbers()) == [0, 0, 1, 1, 2, 2, 3, 3])
    wait_until_finished(wide)


def test_a_delayed_message_is_added_when_its_time_has_come(topic, producer, start, client):
    name = producer.send(topic.name, {"n": 1}, delay_ms=100)
    assert client.xlen(topic.keys.stream(0)) == 0
    seen = Seen()

    start(topic, seen)

    eventually(lambda: seen.numbers() == [1])
    assert name.startswith("send:")
    assert not client.exists(topic.keys.delayed(0), topic.keys.delayed_items(0))


def test_a_waiting_entry_that_somebody_acked_by_hand_is_forgotten(topic, send, start, client):
    (entry_id,) = send(1)
    start(topic, lambda msg: Retry(delay_ms=150))
    eventually(lambda: client.zscore(topic.keys.waiting(GROUP, 0), entry_id))

    client.xack(topic.keys.stream(0), GROUP, entry_id)

    eventually(lambda: not client.exists(topic.keys.waiting(GROUP, 0), topic.keys.failures(GROUP, 0)))
    assert dead_letters(topic) == []


def test_requeued_the_copies_remember_the_first_delivery_and_the_last_delay(topic, send, start):
    (entry_id,) = send(1)
    policy = RetryPolicy(max_attempts=4, base_delay_ms=20, max_delay_ms=100_000)
    seen = Seen()

    def fail(msg):
        seen(msg)
        raise ValueError(f"failed at {msg.attempt}")

    start(topic, fail, config=quick(retry_mode="requeue", retry=policy))

    (letter,) = eventually(lambda: dead_letters(topic))
    kept = [msg.envelope.failure for msg in seen]
    assert kept[0] is None
    assert len({failure["first_delivered_at_ms"] for failure in kept[1:]}) == 1
    assert letter["firstDeliveredAt"] == kept[1]["first_delivered_at_ms"]
    for before, after in pairwise(kept[1:]):
        assert 20 <= after["last_delay_ms"] <= 3 * before["last_delay_ms"]
    assert "failed at 1" in kept[1]["error_message"]
    (record,) = DeadLetters(topic).list().letters
    assert (record.original_id, record.error_type) == (entry_id, "ValueError")
    assert record.replayed(to_all_groups=False).failure is None


@pytest.mark.parametrize("mode", ["in_place", "requeue"])
def test_a_message_may_bring_its_own_number_of_retries(topic, producer, start, mode):
    producer.send(topic.name, {"n": 0}, max_retries=0)
    producer.send(topic.name, {"n": 2}, max_retries=2)
    producer.send_many(topic.name, [Message(payload={"n": 4}, max_retries=4), {"n": 1}])
    seen = Seen()

    def fail(msg):
        seen(msg)
        raise ValueError("never")

    policy = RetryPolicy(max_attempts=2, base_delay_ms=1, max_delay_ms=10)
    start(topic, fail, config=quick(retry_mode=mode, retry=policy))

    eventually(lambda: len(dead_letters(topic)) == 4)
    assert {n: seen.numbers().count(n) for n in (0, 1, 2, 4)} == {0: 1, 1: 2, 2: 3, 4: 5}
    attempts = {letter["envelope"]["payload"]["n"]: letter["attempts"] for letter in dead_letters(topic)}
    assert attempts == {0: 1, 1: 2, 2: 3, 4: 5}


@pytest.mark.parametrize("max_retries", [-1, 1.5, "many", True])
def test_a_number_of_retries_that_is_none_is_refused(topic, producer, max_retries):
    with pytest.raises((TypeError, ValueError), match="max_retries"):
        producer.send(topic.name, {"n": 1}, max_retries=max_retries)
