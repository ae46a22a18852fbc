"""The envelope: everything comes back, and an entry of the plain queue needs none."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conquiet.mq import Envelope
from conquiet.mq.envelope import check_envelope
from conquiet.payload import decode_payload

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
payloads = st.dictionaries(text, values, max_size=4)
envelopes = st.builds(
    Envelope,
    topic=st.just("orders"),
    partition=st.integers(0, 100),
    payload=payloads,
    id=text,
    key=st.none() | text,
    headers=st.dictionaries(text, text, max_size=3),
    timestamp_ms=st.integers(0, 2**53),
    attempt=st.integers(0, 100),
    max_retries=st.none() | st.integers(0, 100),
    original_id=st.none() | text,
    replayed_from=st.none() | text,
    for_group=st.none() | text,
    failure=st.none() | st.just({"last_delay_ms": 20}),
)


@given(envelope=envelopes)
def test_an_envelope_comes_back_as_it_was(envelope):
    data = decode_payload(envelope.encode())

    check_envelope(data)
    assert Envelope.of(data, topic="orders", partition=envelope.partition) == envelope


@given(envelope=envelopes)
def test_what_is_sent_for_the_first_time_is_written_as_a_copy_of_it_would_be(envelope):
    first = envelope.copied(attempt=0, max_retries=None, original_id=None, replayed_from=None, for_group=None)
    copy = first.copied(attempt=1)

    as_written = first.encode().decode()

    assert (
        as_written.replace('"attempt":0,"maxRetries"', '"attempt":1,"maxRetries"') == copy.encode().decode()
    )


def test_a_fraction_of_a_millisecond_that_another_program_sent_is_written_again():
    """Else a dead letter would have the bytes alone, and could not be replayed."""
    sent = json.loads(Envelope(topic="orders", partition=0, payload={}).encode()) | {"timestamp": 1.5}

    envelope = Envelope.of(sent, topic="orders", partition=0)

    assert decode_payload(envelope.encode()) == sent


@pytest.mark.parametrize(
    "part", [{"key": "\ud800"}, {"headers": {"a": "\ud800"}}, {"payload": {"a": "\ud800"}}]
)
def test_a_lone_surrogate_is_refused_wherever_it_is(part):
    envelope = Envelope(**{"topic": "orders", "partition": 0, "payload": {}} | part)

    with pytest.raises(ValueError, match="lone surrogate"):
        envelope.encode()


@given(payload=payloads)
def test_an_entry_of_the_plain_queue_is_a_payload_without_envelope(payload):
    payload.pop("schemaVersion", None)

    envelope = Envelope.of(payload, topic="orders", partition=3)

    check_envelope(payload)
    assert (envelope.payload, envelope.partition, envelope.key) == (payload, 3, None)
    assert (envelope.id, envelope.timestamp_ms, envelope.attempt) == ("", 0, 0)


def test_the_names_on_the_wire_are_those_of_the_document():
    written = json.loads(Envelope(topic="orders", partition=2, payload={"n": 1}).encode())

    assert list(written) == [
        *("schemaVersion", "id", "topic", "partitionId", "key", "headers", "timestamp", "attempt"),
        *("maxRetries", "originalMessageId", "replayedFrom", "forGroup", "payload"),
    ]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", 5),
        ("key", ["anna"]),
        ("headers", "trace"),
        ("timestamp", "now"),
        ("attempt", 1.5),
        ("maxRetries", "many"),
        ("originalMessageId", {}),
        ("replayedFrom", 1),
        ("forGroup", True),
        ("failure", "broken"),
    ],
)
def test_an_envelope_in_name_only_is_refused(field, value):
    with pytest.raises(ValueError, match=f"'{field}' of its envelope"):
        check_envelope({"schemaVersion": 1, "payload": {}, field: value})


@pytest.mark.parametrize("payload", [{"n": float("nan")}, {"n": "\ud800"}, {"when": {1, 2}}, {1: "a"}])
def test_what_would_not_come_back_equal_is_refused(payload):
    with pytest.raises((TypeError, ValueError)):
        Envelope(topic="orders", partition=0, payload=payload).encode()


@pytest.mark.parametrize("payload", [{"n": 1}, "text", None])
def test_an_envelope_of_a_later_version_is_refused(payload):
    with pytest.raises(ValueError, match="schema version 2, this conquiet reads up to 1"):
        check_envelope({"schemaVersion": 2, "payload": payload})


def test_a_payload_with_a_version_of_its_own_is_a_payload():
    check_envelope({"schemaVersion": 2, "order": 1})
    check_envelope({"schemaVersion": "2.1", "payload": {}})
