"""How a handled message is settled, without Redis and without a clock."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import pytest

from conquiet.consume.outcome import Settlement, Skipped
from conquiet.errors import MalformedEntry
from conquiet.mq import Ack, DeadLetter, Envelope, MqMessage, Retry, RetryPolicy
from conquiet.mq.own.settlement import Failure, SettlementRules
from conquiet.payload import decode_payload
from conquiet.queue import QueueMessage
from conquiet.tracing import Where

POLICY = RetryPolicy(max_attempts=3, backoff="exponential", base_delay_ms=100)
FIRST = b'{"first_delivered_at_ms": 900}'


def rules(mode="in_place", policy=POLICY):
    return SettlementRules(policy=policy, mode=mode, consumer="worker-1")


def message(
    *, count=1, attempts_before=0, payload=None, data=b"", original_id=None, for_group=None, failure=FIRST
):
    envelope = Envelope(
        topic="orders",
        partition=2,
        payload={"n": 1} if payload is None else payload,
        key="anna",
        headers={"trace": "abc"},
        attempt=attempts_before,
        original_id=original_id,
        for_group=for_group,
    )
    return MqMessage(
        topic="orders",
        group="billing",
        partition=2,
        id="5-0",
        attempt=attempts_before + count,
        envelope=envelope,
        delivery_count=count,
        stream="stream:topic:orders:p:2",
        data=data or envelope.encode(),
        failure=failure,
    )


def test_a_message_shows_itself_as_the_plain_queue_sees_it():
    msg = message(count=2, data=b'{"n":1}')

    assert msg.source == QueueMessage("stream:topic:orders:p:2", "billing", "5-0", {"n": 1}, 2)


def error(text="broken"):
    try:
        raise ValueError(text)
    except ValueError as caught:
        return caught


@pytest.mark.parametrize("outcome", [Skipped(), Ack()])
def test_success_is_an_ack(outcome):
    assert rules().for_outcome(message(), outcome, 1_000) == Settlement("ack", "5-0", 1)


def test_a_failure_waits_by_the_policy_and_is_remembered():
    settlement = rules().for_error(message(count=2), error(), 1_000)

    assert (settlement.kind, settlement.first, settlement.delivery_count) == ("retry", 200, 2)
    remembered = Failure.of(message(failure=settlement.second.encode()), now_ms=9_999)
    assert remembered == Failure(900, 200, "ValueError", "broken")


def test_a_retry_waits_as_long_as_the_handler_said():
    settlement = rules().for_outcome(message(), Retry(delay_ms=7, reason="closed"), 1_000)

    assert (settlement.kind, settlement.first) == ("retry", 7)
    assert json.loads(settlement.second)["error_message"] == "closed"


@pytest.mark.parametrize("mode", ["in_place", "requeue"])
def test_after_the_last_attempt_it_is_dead(mode):
    for settlement in (
        rules(mode).for_error(message(count=3), error(), 1_000),
        rules(mode).for_outcome(message(count=3), Retry(), 1_000),
        rules(mode).for_outcome(message(), DeadLetter("never"), 1_000),
    ):
        assert settlement.kind == "dead_letter"


def test_a_requeued_copy_keeps_the_message_and_knows_its_group_and_attempts():
    settlement = rules("requeue").for_error(message(count=1, attempts_before=1), error(), 1_000)

    partition, _, data = settlement.second.partition(b":")
    copy = json.loads(data)
    assert (settlement.kind, settlement.first, partition) == ("requeue", 200, b"2")
    assert (copy["attempt"], copy["originalMessageId"], copy["forGroup"]) == (2, "5-0", "billing")
    assert (copy["payload"], copy["key"], copy["headers"]) == ({"n": 1}, "anna", {"trace": "abc"})


@pytest.mark.parametrize(("for_group", "original_id"), [("billing", "1-0"), (None, "5-0")])
def test_a_copy_of_a_copy_knows_the_first_entry_but_what_is_for_all_groups_is_one_itself(
    for_group, original_id
):
    msg = message(original_id="1-0", for_group=for_group)

    copy = rules("requeue").for_error(msg, error(), 1_000)
    letter = rules().for_outcome(msg, DeadLetter("no"), 1_000)

    assert json.loads(copy.second.partition(b":")[2])["originalMessageId"] == original_id
    assert json.loads(letter.first)["originalMessageId"] == original_id


@pytest.mark.parametrize("count", [1, 3])
def test_up_to_the_last_attempt_a_message_is_no_poison(count):
    assert rules().without_handler(message(count=count), 1_000) is None


def test_a_message_that_was_delivered_too_often_is_poison():
    letter = json.loads(rules().without_handler(message(count=4), 1_000).first)

    assert (letter["errorType"], letter["attempts"]) == ("Poison", 3)
    assert letter["errorMessage"] == "delivered 3 times and never finished"


def test_poison_that_failed_before_keeps_its_last_error():
    failure = json.dumps(
        {"first_delivered_at_ms": 900, "error_type": "KeyError", "error_message": "'n'"}
    ).encode()

    letter = json.loads(rules().without_handler(message(count=4, failure=failure), 1_000).first)

    assert letter["errorType"] == "KeyError"
    assert letter["errorMessage"] == "delivered 3 times and never finished; 'n'"


def test_a_dead_letter_tells_everything():
    policy = RetryPolicy(max_attempts=1)

    letter = json.loads(rules(policy=policy).for_error(message(), error(), 1_000).first)

    assert "in error" in letter.pop("traceback")
    assert letter.pop("envelope")["payload"] == {"n": 1}
    assert letter == {
        "schemaVersion": 1,
        "topic": "orders",
        "group": "billing",
        "partition": 2,
        "key": "anna",
        "headers": {"trace": "abc"},
        "originalMessageId": "5-0",
        "attempts": 1,
        "firstDeliveredAt": 900,
        "lastDeliveredAt": 1_000,
        "deadLetteredAt": 1_000,
        "lastConsumer": "worker-1",
        "errorType": "ValueError",
        "errorMessage": "broken",
    }


@pytest.mark.parametrize("mode", ["in_place", "requeue"])
@pytest.mark.parametrize("payload", [{"n": "\ud800"}, {"n": float("inf")}])
def test_a_payload_that_cannot_be_written_again_is_kept_as_it_came(mode, payload):
    msg = message(payload=payload, data=b"as it came")

    letter = json.loads(rules(mode).for_outcome(msg, DeadLetter("no"), 1_000).first)

    assert "envelope" not in letter
    ((name, value),) = letter["fieldsBase64"]
    assert (base64.b64decode(name), base64.b64decode(value)) == (b"data", b"as it came")


def test_a_copy_that_cannot_be_written_is_a_dead_letter_instead():
    settlement = rules("requeue").for_error(
        message(payload={"n": "\ud800"}, data=b'{"n": "\\ud800"}'), error(), 1_000
    )

    assert settlement.kind == "dead_letter"


def test_a_malformed_entry_keeps_its_bytes():
    entry = MalformedEntry("5-0", ((b"x", b"\xff"), (b"x", b"y")), 1, "no data")

    settlement = rules().for_malformed(entry, Where(destination="orders", group="billing", partition=2), 5)

    letter = json.loads(settlement.first)
    assert settlement.kind == "dead_letter"
    assert letter["fieldsBase64"] == [["eA==", "/w=="], ["eA==", "eQ=="]]
    assert (letter["errorType"], letter["errorMessage"]) == ("Malformed", "no data")


@pytest.mark.parametrize("mode", ["in_place", "requeue"])
def test_an_error_that_names_an_odd_file_leaves_a_letter_that_can_be_read(mode):
    odd = error("no file b\udc80")

    dead = rules(mode).for_error(message(count=3), odd, 1_000)
    again = rules(mode).for_error(message(), odd, 1_000)

    letter = decode_payload(dead.first.encode())
    assert letter["errorMessage"] == "no file b\\udc80"
    assert again.kind == ("retry" if mode == "in_place" else "requeue")


def test_a_copy_that_carries_nonsense_of_its_attempts_is_taken_as_the_first():
    carried = {"first_delivered_at_ms": "now", "last_delay_ms": 7, "unknown": 1, "error_type": None}

    msg = message(failure=b"")
    copy = replace(msg, envelope=msg.envelope.copied(failure=carried))

    assert Failure.of(copy, 900) == Failure(900, last_delay_ms=7, unknown={"unknown": 1})


@pytest.mark.parametrize(
    ("max_retries", "kind"), [(None, "dead_letter"), (0, "dead_letter"), (2, "dead_letter"), (3, "retry")]
)
def test_the_message_says_how_often_it_is_tried_again(max_retries, kind):
    msg = message(count=3)
    own = replace(msg, envelope=msg.envelope.copied(max_retries=max_retries))

    assert rules().for_error(own, error(), 1_000).kind == kind


def test_a_message_with_more_retries_than_the_policy_is_no_poison_before_them():
    msg = message(count=5)
    own = replace(msg, envelope=msg.envelope.copied(max_retries=4))

    assert rules().without_handler(own, 1_000) is None
    assert rules().without_handler(msg, 1_000).kind == "dead_letter"
