"""Conversions: between values of annotated types and what JSON has, without any package."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from conquiet.payload.kinds import (
    Conversion,
    EnumKind,
    Fields,
    FixedTuple,
    Float,
    Items,
    LiteralKind,
    Misfit,
    Null,
    Object,
    OptionalKind,
    Scalar,
    Text,
    UnionKind,
    Untyped,
    each,
)
from conquiet.payload.models import conversion_of_model, is_model


def conversion_of(hint: Any) -> Conversion:
    """That of a type or annotation; made once.

    Raises:
        Misfit: it is, or has in it, a type that this module does not know.
    """
    try:
        known = _known.get(hint)
    except TypeError:
        # An annotation that cannot be a key, as a Literal of a list.
        return _make(hint)
    if known is None:
        known = _make(hint)
        _known[hint] = known
    return known


def conversion_by_value(value: Any) -> Conversion:
    """That of a value whose type nobody names: of a dataclass or a model its class, else by each value."""
    kind = type(value)
    return conversion_of(kind) if dataclasses.is_dataclass(kind) or is_model(kind) else _BY_VALUE


class _ByValue:
    """What no annotation names, in a dict that is sent: text for what its reader's type can make of text."""

    def dump(self, value: Any, /) -> Any:
        kind = type(value)
        if kind in (str, int, bool, type(None)):
            return value
        if isinstance(value, dict):
            return _STRING_KEYS.dump(value)
        if isinstance(value, list):
            return each(value, self.dump)
        has_one = kind in _known or issubclass(kind, Enum) or dataclasses.is_dataclass(kind) or is_model(kind)
        if not has_one:
            raise Misfit(f"is a {kind.__name__}, which JSON does not have{_REMEDY}")
        return conversion_of(kind).dump(value)

    def load(self, found: Any, /) -> Any:
        return found


def _make(hint: Any) -> Conversion:
    if hint in (Any, object, dict, list) or isinstance(hint, typing.TypeVar):
        return _PLAIN.get(hint, _UNTYPED)
    if isinstance(hint, typing.NewType):
        return conversion_of(hint.__supertype__)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is not None and not is_model(hint):
        return _make_generic(hint, origin, arguments)
    if is_model(hint):
        return conversion_of_model(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return EnumKind(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _make_fields(hint, _dataclass_fields(hint))
    if typing.is_typeddict(hint):
        return _make_fields(hint, _typed_dict_fields(hint))
    raise Misfit(f"has the type {_name(hint)}, which cannot be written as JSON and read back{_REMEDY}")


def _make_generic(hint: Any, origin: Any, arguments: tuple[Any, ...]) -> Conversion:
    if origin in (typing.Annotated, typing.Required, typing.NotRequired, typing.Final, typing.ClassVar):
        return conversion_of(arguments[0])
    if origin is typing.Literal:
        return LiteralKind(arguments)
    if origin in (typing.Union, types.UnionType):
        members = [conversion_of(one) for one in arguments if one is not type(None)]
        union = members[0] if len(members) == 1 else UnionKind(members, has_int=int in arguments)
        return OptionalKind(union) if type(None) in arguments else union
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        return FixedTuple([conversion_of(one) for one in arguments])
    if origin in _ARRAYS:
        kind, make = _ARRAYS[origin]
        return Items(kind, conversion_of(arguments[0]), make)
    if isinstance(origin, type) and issubclass(origin, Mapping) and len(arguments) == 2:
        return Object(*map(conversion_of, arguments))
    if dataclasses.is_dataclass(origin):
        # A generic one: its parameters are not known to its fields.
        return conversion_of(origin)
    raise Misfit(f"has the type {_name(hint)}, which cannot be written as JSON and read back{_REMEDY}")


def _make_fields(kind: type, fields: Mapping[str, tuple[Any, bool]]) -> Conversion:
    made = Fields(kind)
    # Before its fields, of which one may be of the same type.
    _known[kind] = made
    try:
        for name, (hint, is_required) in fields.items():
            try:
                made.fields.append((name, conversion_of(hint), is_required))
            except Misfit as misfit:
                raise misfit.below(f".{name}") from None
    except BaseException:
        del _known[kind]
        raise
    return made


def _dataclass_fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    hints, fields = _hints_of(kind), {}
    for name, hint in hints.items():
        is_init_var = hint is dataclasses.InitVar or isinstance(hint, dataclasses.InitVar)
        if is_init_var and kind.__dataclass_fields__[name].default is dataclasses.MISSING:
            text = "is an InitVar without a default: the reader could not make the value; give it one"
            raise Misfit(text).below(f".{name}")
    for field in dataclasses.fields(kind):
        if not field.init and not field.compare:
            # What takes no part in comparisons, as a cache, is made anew by the class.
            continue
        if not field.init:
            raise Misfit(_NOT_INIT).below(f".{field.name}")
        has_default = (
            field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        )
        fields[field.name] = hints.get(field.name, Any), not has_default
    return fields


def _typed_dict_fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    fields = {}
    for name, hint in _hints_of(kind).items():
        # With `from __future__ import annotations` the class itself does not know.
        origin = typing.get_origin(hint)
        is_required = name in kind.__required_keys__ and origin is not typing.NotRequired
        fields[name] = hint, is_required or origin is typing.Required
    return fields


def _hints_of(kind: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except NameError as error:
        text = f"has annotations that cannot be read: {error}; define what they name in a module"
        raise Misfit(text) from error


def _name(hint: Any) -> str:
    return hint.__qualname__ if isinstance(hint, type) else str(hint)


_REMEDY = (
    "; make it one of str, int, float, bool, datetime, date, time, Decimal, UUID, an Enum, a dataclass or a "
    "model"
)
_NOT_INIT = (
    "would not come back: it is a field with init=False; make it a property, or, where the class fills it "
    "itself, field(init=False, compare=False)"
)
_STR, _FLOAT, _UNTYPED, _BY_VALUE = Scalar(str), Float(), Untyped(), _ByValue()
_STRING_KEYS = Object(_STR, _BY_VALUE)
_PLAIN: dict[Any, Conversion] = {
    dict: Object(_STR, _UNTYPED),
    list: Items(list, _UNTYPED, list),
}
#: What is accepted, and what its items are put into; of an abstract class a list.
_ARRAYS: dict[Any, tuple[type, Callable[[list[Any]], Any]]] = {
    list: (list, list),
    Sequence: (list, list),
    tuple: (tuple, tuple),
    set: (set, set),
    frozenset: (frozenset, frozenset),
    Set: (Set, set),
}
_known: dict[Any, Conversion] = {
    str: _STR,
    int: Scalar(int),
    float: _FLOAT,
    bool: Scalar(bool),
    None: Null(),
    type(None): Null(),
    datetime: Text(datetime, datetime.isoformat, datetime.fromisoformat),
    date: Text(date, date.isoformat, date.fromisoformat),
    time: Text(time, time.isoformat, time.fromisoformat),
    Decimal: Text(Decimal, str, Decimal),
    UUID: Text(UUID, str, UUID),
}
