"""Payloads: what is accepted comes back equal, the rest is refused with a sentence."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import json
import uuid
from enum import Enum, IntEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conquiet.payload import decode_payload, encode_payload


class Color(Enum):
    RED = "red"


text = st.text()  # no surrogates by default
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(text, inner, max_size=5),
    max_leaves=20,
)


@given(st.dictionaries(text, values, max_size=8))
def test_every_payload_that_is_accepted_comes_back_equal(payload):
    encoded = encode_payload(payload)

    assert decode_payload(encoded) == payload
    assert json.loads(encoded.decode("utf-8")) == payload


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary()
    | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(st.integers() | st.text() | st.none(), inner, max_size=3)
        | st.frozensets(st.integers(), max_size=2)
    ),
    max_leaves=8,
)


@given(anything)
def test_whatever_is_offered_comes_back_equal_or_is_refused(payload):
    try:
        encoded = encode_payload(payload)
    except (TypeError, ValueError):
        return

    assert decode_payload(encoded) == payload
    assert type(payload) is dict


class Colour(IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("payload", "error", "sentence"),
    [
        ([1], TypeError, "must be a dict, not list"),
        (None, TypeError, "must be a dict, not NoneType"),
        ({"a": float("nan")}, ValueError, "JSON"),
        ({"a": float("inf")}, ValueError, "JSON"),
        ({"a": [float("-inf")]}, ValueError, "JSON"),
        ({1: "a"}, TypeError, "the key 1"),
        ({"a": {None: 1}}, TypeError, r"payload\['a'\] has the key None"),
        ({"a": {True: 1}}, TypeError, "the key True"),
        ({"a": b"raw"}, TypeError, "bytes"),
        ({"a": datetime.date(2026, 1, 1)}, TypeError, "date"),
        ({"a": decimal.Decimal("1.1")}, TypeError, "Decimal"),
        ({"a": {1, 2}}, TypeError, "set"),
        ({"a": (1, 2)}, TypeError, r"payload\['a'\] is a tuple"),
        ({"a": [[(1,)]]}, TypeError, r"payload\['a'\]\[0\]\[0\] is a tuple"),
        ({"a": "\ud800"}, ValueError, "lone surrogate"),
        ({"\udfff": 1}, ValueError, "lone surrogate"),
        ({"a": 10**5000}, ValueError, "JSON"),
    ],
)
def test_what_would_not_come_back_equal_is_refused_with_its_place(payload, error, sentence):
    with pytest.raises(error, match=sentence):
        encode_payload(payload)


def test_a_payload_that_contains_itself_is_refused():
    payload: dict = {}
    payload["self"] = payload

    with pytest.raises(ValueError, match="contains itself"):
        encode_payload(payload)


def test_an_int_enum_comes_back_as_the_equal_number():
    assert decode_payload(encode_payload({"colour": Colour.RED})) == {"colour": Colour.RED}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"\xff", "not UTF-8"),
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"a": Infinity}', "not JSON"),
        (b"3", "JSON int, not an object"),
        (b'"text"', "JSON str, not an object"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "not JSON"),
    ],
)
def test_what_is_no_json_object_is_refused_by_the_decoder(data, sentence):
    with pytest.raises(ValueError, match=sentence):
        decode_payload(data)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b'{"a": "\\ud800"}', "lone surrogate"),
        (b'{"a": "\\uDFFF and more"}', "lone surrogate"),
        (b'{"\\ud83d": 1}', "lone surrogate"),
        (b'{"a": 1e400}', "beyond every float"),
        (b'{"a": [-1E400]}', "beyond every float"),
        (b'{"a": 1' + b"0" * 400 + b".0}", "beyond every float"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
    ],
)
def test_what_would_not_be_written_is_not_read(data, sentence):
    with pytest.raises(ValueError, match=sentence):
        decode_payload(data)


@pytest.mark.parametrize(
    ("data", "payload"),
    [
        (b'{"a": "\\ud83d\\ude00"}', {"a": "\U0001f600"}),
        (b'{"a": "\\u00e9 \\\\ud800"}', {"a": "\xe9 \\ud800"}),
        (b'{"a": 1e308}', {"a": 1e308}),
        (b'{"a": 1e-400}', {"a": 0.0}),
    ],
)
def test_pairs_of_surrogates_and_numbers_that_fit_are_read(data, payload):
    assert decode_payload(data) == payload


@dataclasses.dataclass
class Line:
    sku: str


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (datetime.datetime(2026, 1, 1), "is a datetime, which JSON does not have: write value.isoformat()"),
        (datetime.timedelta(1), "is a timedelta, which JSON does not have: write value.total_seconds()"),
        (decimal.Decimal("1.10"), "is a Decimal, which JSON does not have: write str(value)"),
        (uuid.UUID(int=1), "is a UUID, which JSON does not have: write str(value)"),
        (Color.RED, "is a Color, which JSON does not have: write value.value"),
        (Line("a"), "is a Line, which JSON does not have: write dataclasses.asdict(value)"),
        (b"x", "is a bytes, which JSON does not have: write base64.b64encode(value).decode()"),
        ({1}, "is a set, which JSON does not have: write sorted(value)"),
        (object(), "is a object, which JSON does not have"),
        (float("nan"), "is nan, which JSON does not have: write None"),
    ],
)
def test_what_is_refused_is_named_with_its_path_and_what_to_write_instead(value, sentence):
    with pytest.raises((TypeError, ValueError)) as caught:
        encode_payload({"id": 7, "lines": [{"price": 1.5}, {"price": value}]})

    assert str(caught.value) == f"payload cannot be written as JSON: payload['lines'][1]['price'] {sentence}"
