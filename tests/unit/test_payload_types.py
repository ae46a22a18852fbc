"""Payloads of a type: what is sent comes back as what it was, the rest is refused with path and remedy."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import traceback
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from types import MappingProxyType
from typing import Annotated, Any, Literal, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conquiet import PayloadTypeError, StandardCodec
from conquiet.payload import as_json_object, decode_payload, encode_payload


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Line:
    sku: str
    price: Decimal
    tags: set[str] = field(default_factory=set)
    parent: Line | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    id: UUID
    at: datetime
    day: date
    opens: time | None = None
    color: Color = Color.RED
    kind: Literal["new", "old"] = "new"
    lines: list[Line] = field(default_factory=list)
    pair: tuple[int, Decimal] | None = None
    amounts: tuple[float, ...] = ()
    by_name: Mapping[str, date] = field(default_factory=dict)
    by_day: dict[date, int] = field(default_factory=dict)
    number: int | float = 1
    rest: Any = None
    marked: Annotated[str, "a mark"] = ""


class Booking(TypedDict):
    at: datetime
    seats: NotRequired[int]


class Model(pydantic.BaseModel):
    at: datetime
    price: Decimal = pydantic.Field(alias="Price")
    lines: list[Line] = []
    share: float = 1.0


class Struct(msgspec.Struct):
    at: datetime
    price: Decimal
    share: float = 1.0


NOW = datetime(2026, 11, 19, 3, 4, 5, 678, tzinfo=UTC)
LINE = Line("a", Decimal("1.10"), {"x"}, parent=Line("b", Decimal(2)))
ORDER = Order(id=UUID(int=7), at=NOW, day=NOW.date())


def through_json(value: Any, payload_type: Any = None) -> Any:
    codec = StandardCodec()
    data = encode_payload(dict(codec.encode(value)))
    return codec.decode(payload_type or type(value), decode_payload(data))


@pytest.mark.parametrize(
    "value",
    [
        ORDER,
        dataclasses.replace(
            ORDER,
            opens=time(9, 30),
            color=Color.BLUE,
            lines=[LINE],
            pair=(1, Decimal("0.1")),
            amounts=(1.5, 2.0),
            by_name={"first": NOW.date()},
            by_day={NOW.date(): 3},
            number=2.0,
            rest={"a": [1, "b", None, 1.5]},
        ),
        Model(at=NOW, Price=Decimal("1.10"), lines=[LINE]),
        Struct(NOW, Decimal("1.10")),
    ],
)
def test_a_value_of_a_type_comes_back_equal(value):
    back = through_json(value)

    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize("booking", [{"at": NOW}, {"at": NOW, "seats": 2}])
def test_a_typed_dict_comes_back_equal(booking):
    assert through_json(booking, Booking) == booking


orders = st.builds(
    Order,
    id=st.uuids(),
    at=st.datetimes(timezones=st.just(UTC)) | st.datetimes(),
    day=st.dates(),
    opens=st.none() | st.times(),
    color=st.sampled_from(Color),
    lines=st.lists(
        st.builds(
            Line, st.text(), st.decimals(allow_nan=False, allow_infinity=False), st.sets(st.text()), st.none()
        ),
        max_size=3,
    ),
    amounts=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3).map(tuple),
    by_day=st.dictionaries(st.dates(), st.integers(), max_size=3),
    number=st.integers() | st.floats(allow_nan=False, allow_infinity=False),
)


@given(orders)
def test_every_order_comes_back_equal_and_of_its_types(order):
    back = through_json(order)

    assert back == order
    assert type(back.number) is type(order.number)


@dataclass
class WithUnion:
    value: datetime | str


@dataclass
class WithBytes:
    raw: bytes


@dataclass
class GiftLine(Line):
    greeting: str = ""


@dataclass
class Derived:
    cents: int
    euros: float = field(init=False)

    def __post_init__(self) -> None:
        self.euros = self.cents / 100


@dataclass
class OfAnInitVar:
    cents: int
    rate: InitVar[float]


@dataclass
class WithOptionalInitVar:
    cents: int
    rate: InitVar[float] = 1.0


@dataclass
class Basket:
    items: list[Derived | OfAnInitVar]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (
            dataclasses.replace(ORDER, lines=[LINE, GiftLine("a", Decimal(1), greeting="hi")]),
            r"^payload\.lines\[1\] is a GiftLine, which would come back as a Line without greeting: "
            r"annotate it as GiftLine, or send a Line$",
        ),
        (
            Derived(250),
            r"^payload\.euros would not come back: it is a field with init=False; make it a property",
        ),
        ({"lines": [Derived(250)]}, r"^payload\['lines'\]\[0\]\.euros would not come back"),
        (
            OfAnInitVar(250, 1.1),
            r"^payload\.rate is an InitVar without a default: the reader could not make the value; give it",
        ),
        (Basket([]), r"^payload\.items\.euros would not come back"),
        (
            dataclasses.replace(ORDER, lines=[LINE, LINE, LINE, Line("a", 1.5)]),  # type: ignore[arg-type]
            r"^payload\.lines\[3\]\.price is a float, no Decimal; write Decimal\(str\(value\)\)$",
        ),
        ({"lines": [1, 2, 3, Line("a", 1.5)]}, r"^payload\['lines'\]\[3\]\.price is a float"),  # type: ignore[arg-type]
        (
            dataclasses.replace(ORDER, day=NOW),
            r"^payload\.day is a datetime, no date; write value\.date\(\)$",
        ),
        (dataclasses.replace(ORDER, at="now"), r"\.at is a str, no datetime; write datetime\.from"),  # type: ignore[arg-type]
        (dataclasses.replace(ORDER, id="7"), r"\.id is a str, no UUID; write UUID\(value\)$"),  # type: ignore[arg-type]
        (dataclasses.replace(ORDER, color="red"), r"\.color is a str, no Color; write Color\(value\)$"),  # type: ignore[arg-type]
        (dataclasses.replace(ORDER, day=None), r"\.day is None, no date; annotate it as date \| None$"),  # type: ignore[arg-type]
        (Line(None, Decimal(1)), r"\.sku is None, no str; annotate it as str \| None$"),  # type: ignore[arg-type]
        (Line(7, Decimal(1)), r"\.sku is an int, no str; write str\(value\)$"),  # type: ignore[arg-type]
        (dataclasses.replace(ORDER, rest=NOW), r"^payload\.rest is a datetime, but no annotation says so"),
        (dataclasses.replace(ORDER, rest=[{"a": Color.RED}]), r"^payload\.rest\[0\]\['a'\] is a Color, but"),
        (dataclasses.replace(ORDER, number=float("nan")), r"^payload\.number "),
        (dataclasses.replace(ORDER, amounts=(1.0, float("inf"))), r"^payload\.amounts\[1\] is inf"),
        (Line("a", Decimal("NaN")), r"^payload\.price is NaN, which is equal to nothing"),
        (WithUnion("2026-11-19"), r"^payload\.value is a str, which would not come back as one of its types"),
        (
            WithBytes(b""),
            r"^payload\.raw has the type bytes, which cannot be written as JSON.*; make it one of",
        ),
        ({"a": {1, 2}}, r"^payload\['a'\] is a set, which JSON does not have; make it one of"),
        ({"a": {1: 2}}, r"^payload\['a'\]\[1\] is an int, no str"),
        ([1], r"^payload is a list; a payload is a dict, a dataclass or a model"),
    ],
)
def test_what_would_not_come_back_is_refused_with_its_path_and_a_remedy(value, sentence):
    with pytest.raises(PayloadTypeError, match=sentence):
        StandardCodec().encode(value)


def test_a_subclass_that_adds_nothing_to_send_is_refused_too():
    """It would come back as another class, of which it may not even be equal."""
    named = dataclasses.make_dataclass("Named", [], bases=(Line,))

    with pytest.raises(PayloadTypeError, match=r"^payload\.parent is a Named, which would come back as a"):
        StandardCodec().encode(Line("a", Decimal(1), parent=named("b", Decimal(2))))


def test_an_init_var_with_a_default_is_left_to_it():
    assert through_json(WithOptionalInitVar(250, 2.0)) == WithOptionalInitVar(250)


def test_what_contains_itself_is_refused():
    line = Line("a", Decimal(1))
    line.parent = line

    with pytest.raises(PayloadTypeError, match="contains itself"):
        StandardCodec().encode(line)


def test_a_model_with_what_json_does_not_have_is_refused():
    for value in (Model(at=NOW, Price=Decimal(1), share=float("nan")), Struct(NOW, Decimal(1), float("nan"))):
        with pytest.raises(ValueError, match=r"payload\['share'\] is nan"):
            encode_payload(as_json_object(value, None))


@pytest.mark.parametrize(
    ("payload_type", "payload", "path"),
    [
        (Order, {"day": "2026-11-19"}, ".id"),
        (Line, {"sku": "a", "price": 3}, ".price"),
        (Line, {"sku": "a", "price": "three"}, ".price"),
        (Line, {"sku": "a", "price": "1", "parent": {"sku": 1, "price": "1"}}, ".parent.sku"),
        (Booking, {"seats": 2}, "['at']"),
        (Booking, {"at": "yesterday"}, "['at']"),
        (Model, {"at": "2026-11-19T00:00:00", "Price": "x"}, ".Price"),
        (Model, {"at": "2026-11-19T00:00:00", "Price": "1", "lines": [{"sku": "a"}]}, ".lines[0].price"),
        (Struct, {"at": "2026-11-19T00:00:00", "price": "x"}, ".price"),
    ],
)
def test_a_payload_that_does_not_fit_is_an_error_with_the_path(payload_type, payload, path):
    with pytest.raises(PayloadTypeError) as raised:
        StandardCodec().decode(payload_type, payload)

    assert raised.value.path == path
    assert "three" not in "".join(traceback.format_exception(raised.value))
    assert str(raised.value).startswith(f"payload{path} ")


@pytest.mark.parametrize("payload_type", [Line, Model, Struct, Booking])
def test_members_that_a_type_does_not_know_are_left_out(payload_type):
    later = {"sku": "a", "price": "1", "Price": "1", "at": NOW.isoformat(), "of a later version": 1}

    assert StandardCodec().decode(payload_type, later)


@pytest.mark.parametrize(
    ("payload_type", "sentence"),
    [
        (WithBytes, r"WithBytes\.raw has the type bytes"),
        (bytes, "payload=bytes cannot be used"),
        (Derived, r"payload=Derived cannot be used: Derived\.euros would not come back"),
        (OfAnInitVar, r"OfAnInitVar\.rate is an InitVar without a default"),
    ],
)
def test_a_type_that_cannot_be_read_is_refused_before_the_first_payload(payload_type, sentence):
    with pytest.raises(TypeError, match=sentence):
        StandardCodec().check_type(payload_type)


def test_a_dict_is_sent_as_it_is_and_any_other_mapping_as_an_equal_one():
    payload = {"a": 1}

    assert as_json_object(payload, None) is payload
    assert as_json_object(MappingProxyType(payload), None) == payload


def test_a_dict_with_dates_is_sent_by_a_codec_and_refused_without_one():
    assert as_json_object({"at": NOW}, StandardCodec()) == {"at": NOW.isoformat()}
    with pytest.raises(TypeError, match="is a datetime, which JSON does not have"):
        encode_payload(as_json_object({"at": NOW}, None))


def test_pydantic_and_msgspec_are_imported_by_those_who_use_them_alone():
    code = (
        "import sys, dataclasses, conquiet; "
        "order = dataclasses.make_dataclass('Order', [('n', int)]); codec = conquiet.StandardCodec(); "
        "codec.decode(order, codec.encode(order(1))); conquiet.drain; "
        "print({'pydantic', 'msgspec'} & set(sys.modules))"
    )

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout.strip() == "set()"
