"""PayloadCodec: the hook between values of a program and the JSON object that is sent; its standard one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Protocol

from conquiet.errors import PayloadTypeError
from conquiet.payload.json_object import Payload


class _HasDataclassFields(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


class _HasPydanticValidator(Protocol):
    # `__pydantic_fields__` is younger than the oldest pydantic that is supported.
    __pydantic_validator__: ClassVar[Any]


class _HasStructFields(Protocol):
    __struct_fields__: ClassVar[tuple[str, ...]]


#: What can be sent: a dict of what JSON has, a dataclass, a model of pydantic or msgspec.
Sendable = Mapping[str, Any] | _HasDataclassFields | _HasPydanticValidator | _HasStructFields


class PayloadCodec(Protocol):
    """How values become the JSON objects of messages, and JSON objects values; any object with these two.

    Examples:
        >>> class Renamed:
        ...     def encode(self, value):
        ...         return {"orderId": value["order_id"]}
        ...
        ...     def decode(self, payload_type, payload):
        ...         return payload_type(order_id=payload["orderId"])
        >>> renamed = StreamWriter(client, "renamed", codec=Renamed())
        >>> client.xrange("renamed", renamed.enqueue({"order_id": 7}))[0][1]
        {b'data': b'{"orderId":7}'}
    """

    def encode(self, value: Any, /) -> Mapping[str, Any]:
        """The JSON object of a value that is sent; what it raises, the call that sends raises."""

    def decode(self, payload_type: Any, payload: Payload, /) -> Any:
        """A value of this type; what it raises is the failure of the message."""


class StandardCodec:
    """Dataclasses, TypedDicts, pydantic's and msgspec's models; dates, decimals, UUIDs and enums as text.

    A dataclass is written by its annotations, so that each value comes back as what it was; a dict, which has
    none, by the classes of its values.

    Examples:
        >>> from dataclasses import make_dataclass
        >>> from datetime import date
        >>> Booking = make_dataclass("Booking", [("day", date), ("seats", int)])
        >>> codec = StandardCodec()
        >>> codec.encode(Booking(date(2026, 11, 19), 2))
        {'day': '2026-11-19', 'seats': 2}
        >>> codec.decode(Booking, {"day": "2026-11-19", "seats": 2})
        Booking(day=datetime.date(2026, 11, 19), seats=2)
    """

    def encode(self, value: Any, /) -> Mapping[str, Any]:
        """The JSON object of a value.

        Raises:
            PayloadTypeError: something in it would not come back equal; it names the path and the remedy.
        """
        from conquiet.payload.conversions import conversion_by_value
        from conquiet.payload.kinds import Misfit

        try:
            written = conversion_by_value(value).dump(value)
        except Misfit as misfit:
            raise PayloadTypeError(misfit.path, misfit.problem) from misfit.__cause__
        except RecursionError as error:
            raise PayloadTypeError("", "is nested too deeply, or contains itself") from error
        if not isinstance(written, dict):
            text = f"is a {type(value).__name__}; a payload is a dict, a dataclass or a model"
            raise PayloadTypeError("", text)
        return written

    def decode(self, payload_type: Any, payload: Payload, /) -> Any:
        """A value of this type.

        Raises:
            PayloadTypeError: the payload does not fit it; members that the type does not know are left out.
        """
        from conquiet.payload.conversions import conversion_of
        from conquiet.payload.kinds import Misfit

        try:
            return conversion_of(payload_type).load(payload)
        except Misfit as misfit:
            error = PayloadTypeError(misfit.path, misfit.problem)
        # Without a cause, whose text may quote the payload: the error is logged, and kept with a dead letter.
        raise error

    def check_type(self, payload_type: Any) -> None:
        """Refuse a type that no payload could be read as, before the first message.

        Raises:
            TypeError: it has an annotation that cannot be read or written.
        """
        from conquiet.payload.conversions import conversion_of
        from conquiet.payload.kinds import Misfit

        try:
            conversion_of(payload_type)
        except Misfit as misfit:
            name = getattr(payload_type, "__name__", payload_type)
            text = f"payload={name} cannot be used: {name}{misfit.path} {misfit.problem}"
            raise TypeError(text) from misfit.__cause__


def check_codec(codec: object) -> None:
    """Refuse what is neither a codec nor `None`."""
    has_both = callable(getattr(codec, "encode", None)) and callable(getattr(codec, "decode", None))
    if codec is not None and (isinstance(codec, type) or not has_both):
        of_class = f": write {codec.__name__}()" if isinstance(codec, type) and has_both else ""
        raise TypeError(f"codec must be an object with encode and decode, got {codec!r:.100}{of_class}")


_STANDARD = StandardCodec()
#: What the classes of dataclasses and models have.
_OF_TYPED = ("__dataclass_fields__", "__pydantic_validator__", "__struct_fields__")


def is_sendable(value: object) -> bool:
    """Whether it is one payload, and not a list of them: a model of pydantic can be iterated, too."""
    return isinstance(value, Mapping) or any(hasattr(type(value), name) for name in _OF_TYPED)


def as_json_object(value: Any, codec: PayloadCodec | None) -> Payload:
    """What is sent of a value; without a codec a dict as it is, and all else as `StandardCodec` writes it."""
    if codec is None and isinstance(value, dict):
        return value
    if codec is None and isinstance(value, Mapping):
        return dict(value)
    if codec is None and is_sendable(value):
        codec = _STANDARD
    # What else it is, and that it must be a dict, the encoder says.
    return value if codec is None else dict(codec.encode(value))


def as_json_objects(values: Iterable[Any], codec: PayloadCodec | None) -> list[Payload]:
    """As `as_json_object`, for many."""
    written: list[Payload] = []
    for value in values:
        if codec is None and type(value) is dict:
            written.append(value)
        else:
            written.append(as_json_object(value, codec))
    return written
