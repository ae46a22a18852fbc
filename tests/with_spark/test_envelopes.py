"""Envelopes made and opened for whole columns are those of the MQ, byte for byte."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from conquiet.mq import Envelope
from conquiet.payload import encode_payload
from conquiet.spark.columns import HEADERS
from conquiet.spark.wire import envelope_decoder
from conquiet.spark.wire.envelope_decoder import decode_envelopes
from conquiet.spark.wire.envelope_encoder import EnvelopeEncoder, json_headers, json_keys, new_ids

TEXT = st.text(alphabet=st.characters(codec="utf-8"), max_size=20) | st.sampled_from(
    [',"payload":{', '"', "\\", ',"key":null', ',"headers":{}', "\x00id", '},"timestamp":1']
)
PAYLOADS = st.dictionaries(TEXT, st.none() | st.integers() | TEXT | st.lists(TEXT, max_size=2), max_size=3)
MESSAGES = st.lists(
    st.tuples(st.none() | TEXT, st.dictionaries(TEXT, TEXT, max_size=2), PAYLOADS), min_size=1, max_size=8
)


def envelopes_of(messages, **facts) -> list[Envelope]:
    return [
        Envelope(
            topic="orders", partition=2, key=key, headers=headers, payload=payload, id=f"abc-{index}", **facts
        )
        for index, (key, headers, payload) in enumerate(messages)
    ]


@settings(max_examples=200)
@given(MESSAGES)
def test_a_wrapped_column_is_what_the_producer_would_send(messages):
    envelopes = envelopes_of(messages, timestamp_ms=1_700_000_000_123)
    keys = pa.array([key for key, _, _ in messages], pa.string())
    headers = pa.array([list(headers.items()) for _, headers, _ in messages], HEADERS)
    data = pa.array([encode_payload(payload).decode() for _, _, payload in messages], pa.string())

    wrapped = EnvelopeEncoder("orders", 2).encode(
        data,
        json_keys(keys),
        json_headers(headers, len(data)),
        ids=pa.array([envelope.id for envelope in envelopes]),
        timestamp_ms=1_700_000_000_123,
    )

    assert [text.encode() for text in wrapped.to_pylist()] == [envelope.encode() for envelope in envelopes]


@settings(max_examples=200)
@given(MESSAGES, st.sampled_from([None, "billing"]))
def test_an_unwrapped_column_has_key_headers_and_payload(messages, for_group):
    envelopes = envelopes_of(messages, for_group=for_group)

    inside = decode_envelopes(pa.array([envelope.encode().decode() for envelope in envelopes], pa.string()))

    assert inside.key.to_pylist() == [envelope.key for envelope in envelopes]
    assert [dict(pairs) for pairs in inside.headers.to_pylist()] == [
        dict(envelope.headers) for envelope in envelopes
    ]
    assert inside.data.to_pylist() == [encode_payload(envelope.payload).decode() for envelope in envelopes]
    assert not inside.problems


def test_messages_without_headers_are_opened_in_the_quickest_way():
    envelopes = envelopes_of(
        [("a", {}, {"n": 1}), (None, {}, {}), ('q"', {}, {"payload": {"forGroup": None}})]
    )
    column = pa.array([envelope.encode().decode() for envelope in envelopes], pa.string())

    quick, thorough = (
        envelope_decoder.bounds_without_headers(column),
        envelope_decoder.bounds_with_headers(column),
    )

    assert quick is not None
    assert thorough is not None
    for name in ("key", "key_end", "headers", "headers_end", "payload"):
        assert getattr(quick, name).tolist() == getattr(thorough, name).tolist()


def test_a_payload_without_an_envelope_is_a_message_without_a_key():
    inside = decode_envelopes(
        pa.array(['{"number":1}', Envelope(topic="t", partition=0, payload={}).encode().decode()])
    )

    assert inside.data.to_pylist() == ['{"number":1}', "{}"]
    assert inside.key.to_pylist() == [None, None]


def test_a_broken_envelope_is_a_problem_of_its_own_row():
    inside = decode_envelopes(
        pa.array(['{"number":1}', '{"number":', '{"schemaVersion":1,"key":5,"payload":{}}'])
    )

    assert inside.data.to_pylist() == ['{"number":1}', None, None]
    assert "not JSON" in inside.problems[1]
    assert "'key' of its envelope" in inside.problems[2]


def test_fields_of_a_later_version_are_left_out_and_an_envelope_of_one_is_a_problem_of_its_own_row():
    usual = Envelope(topic="t", partition=0, payload={"n": 1}, key="a").encode().decode()
    newer = usual.replace('"payload":', '"newer":{"key":"b"},"payload":')

    for entries in ([newer], [usual, newer], [usual, newer, '{"schemaVersion":2,"payload":{"n":1}}']):
        inside = decode_envelopes(pa.array(entries))

        assert inside.data.to_pylist()[:2] == ['{"n":1}'] * len(entries[:2])
        assert inside.key.to_pylist()[:2] == ["a"] * len(entries[:2])
        assert list(inside.problems) == ([2] if len(entries) == 3 else [])
        assert all("schema version 2" in problem for problem in inside.problems.values())


def test_new_ids_are_unique():
    ids = [*new_ids(3_000).to_pylist(), *new_ids(3_000).to_pylist()]

    assert len(set(ids)) == 6_000
