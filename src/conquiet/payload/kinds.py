"""The kinds of types that a payload may have in it, each with its way to JSON and back."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Protocol
from uuid import UUID


class Misfit(Exception):  # noqa: N818 -- never seen outside: it becomes a `PayloadTypeError`
    """A value is not of its type, or would not come back as it was; where is collected on the way out."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self._steps: list[str] = []

    @property
    def path(self) -> str:
        """From the payload, as `['lines'][3].price`."""
        return "".join(reversed(self._steps))

    def below(self, step: str) -> Misfit:
        """The same, for the value around."""
        self._steps.append(step)
        return self


class Conversion(Protocol):
    """Between the values of one type and JSON; raises `Misfit`."""

    def dump(self, value: Any, /) -> Any:
        """What JSON has, from which `load` makes an equal value."""

    def load(self, found: Any, /) -> Any:
        """The value."""


class Scalar:
    """What JSON has itself."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def dump(self, value: Any, /) -> Any:
        try:
            return value if type(value) is self._kind else self._checked(value)
        except Misfit as misfit:
            raise Misfit(misfit.problem + remedy_for(value, self._kind)) from None

    def load(self, found: Any, /) -> Any:
        return found if type(found) is self._kind else self._checked(found)

    def _checked(self, value: Any) -> Any:
        if not isinstance(value, self._kind) or isinstance(value, bool):
            raise Misfit(f"is {shown(value)}, no {self._kind.__name__}")
        return value


class Float:
    """A finite number."""

    def dump(self, value: Any, /) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Misfit(f"is {shown(value)}, no float")
        if not math.isfinite(value):
            raise Misfit(f"is {value}, which JSON does not have: write None")
        return value

    def load(self, found: Any, /) -> float:
        return float(self.dump(found))


class Null:
    """Only `None`."""

    def dump(self, value: Any, /) -> None:
        if value is not None:
            raise Misfit(f"is {shown(value)}, not None")

    load = dump


class Text:
    """What is written as text that its class reads back."""

    def __init__(self, kind: type, write: Callable[[Any], str], read: Callable[[str], Any]) -> None:
        self._kind: Any = kind
        self._write, self._read = write, read

    def dump(self, value: Any, /) -> str:
        # A datetime is a date, too, and would come back without its time.
        if not isinstance(value, self._kind) or (self._kind is date and isinstance(value, datetime)):
            raise Misfit(f"is {shown(value)}, no {self._kind.__name__}{remedy_for(value, self._kind)}")
        text = self._write(value)
        if self._kind is Decimal and not value.is_finite():
            raise Misfit(f"is {value}, which is equal to nothing that could come back: write None")
        return text

    def load(self, found: Any, /) -> Any:
        if not isinstance(found, str):
            raise Misfit(f"is {shown(found)}, no text of a {self._kind.__name__}")
        try:
            return self._read(found)
        except (ValueError, ArithmeticError) as error:
            raise Misfit(f"is {shown(found)}, no text of a {self._kind.__name__}") from error


class EnumKind:
    """By its values, which must be JSON's."""

    def __init__(self, kind: type[Enum]) -> None:
        self._kind = kind

    def dump(self, value: Any, /) -> Any:
        if not isinstance(value, self._kind):
            raise Misfit(f"is {shown(value)}, no {self._kind.__name__}{remedy_for(value, self._kind)}")
        if type(value.value) not in (str, int, float, bool):
            raise Misfit(f"is {value}, whose value JSON does not have: give the enum strings as values")
        return value.value

    def load(self, found: Any, /) -> Any:
        try:
            return self._kind(found)
        except ValueError as error:
            raise Misfit(f"is {shown(found)}, no {self._kind.__name__}") from error


class LiteralKind:
    """Some constants."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values

    def dump(self, value: Any, /) -> Any:
        if not any(value == one and type(value) is type(one) for one in self._values):
            raise Misfit(f"is {shown(value)}, none of {', '.join(map(repr, self._values))}")
        return value

    load = dump


class Items:
    """Lists, tuples of any length and sets: JSON arrays."""

    def __init__(self, kind: type, item: Conversion, make: Callable[[list[Any]], Any]) -> None:
        self._kind, self._item, self._make = kind, item, make

    def dump(self, value: Any, /) -> list[Any]:
        if not isinstance(value, self._kind) or isinstance(value, str):
            raise Misfit(f"is {shown(value)}, no {self._kind.__name__}")
        return each(value, self._item.dump)

    def load(self, found: Any, /) -> Any:
        if not isinstance(found, list):
            raise Misfit(f"is {shown(found)}, no list")
        return self._make(each(found, self._item.load))


class FixedTuple:
    """One of a fixed length."""

    def __init__(self, items: Sequence[Conversion]) -> None:
        self._items = items

    def dump(self, value: Any, /) -> list[Any]:
        if not isinstance(value, tuple):
            raise Misfit(f"is {shown(value)}, no tuple")
        return self._all(value, "dump")

    def load(self, found: Any, /) -> Any:
        if not isinstance(found, list):
            raise Misfit(f"is {shown(found)}, no list")
        return tuple(self._all(found, "load"))

    def _all(self, values: Sequence[Any], how: str) -> list[Any]:
        if len(values) != len(self._items):
            raise Misfit(f"has {len(values)} items, not {len(self._items)}")
        pairs = zip(self._items, values, strict=True)
        converted = []
        for number, (item, value) in enumerate(pairs):
            try:
                converted.append(getattr(item, how)(value))
            except Misfit as misfit:
                raise misfit.below(f"[{number}]") from misfit.__cause__
        return converted


class Object:
    """JSON objects with any names."""

    def __init__(self, key: Conversion, value: Conversion) -> None:
        self._key, self._value = key, value

    def dump(self, value: Any, /) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise Misfit(f"is {shown(value)}, no dict")
        written = {}
        for key, item in value.items():
            try:
                written[self._name_of(key)] = self._value.dump(item)
            except Misfit as misfit:
                raise misfit.below(f"[{key!r}]") from misfit.__cause__
        return written

    def _name_of(self, key: Any) -> str:
        name = self._key.dump(key)
        if not isinstance(name, str):
            raise Misfit(f"has a key that is written as {name!r}: JSON's are strings")
        return name

    def load(self, found: Any, /) -> Any:
        if not isinstance(found, dict):
            raise Misfit(f"is {shown(found)}, no object")
        read = {}
        for name, item in found.items():
            try:
                read[self._key.load(name)] = self._value.load(item)
            except Misfit as misfit:
                raise misfit.below(f"[{name!r}]") from misfit.__cause__
        return read


class UnionKind:
    """Values of several types: what is written must come back as the one that it was."""

    def __init__(self, members: Sequence[Conversion], *, has_int: bool) -> None:
        self._members, self._has_int = members, has_int

    def dump(self, value: Any, /) -> Any:
        for member in self._members:
            try:
                written = member.dump(value)
            except Misfit:
                continue
            back = self.load(written)
            if type(back) is type(value) and back == value:
                return written
        raise Misfit(f"is {shown(value)}, which would not come back as one of its types: have only one")

    def load(self, found: Any, /) -> Any:
        if self._has_int and type(found) is int:
            # It would become a float, where that comes first.
            return found
        problems = []
        for member in self._members:
            try:
                return member.load(found)
            except Misfit as misfit:
                problems.append(f"{misfit.path} {misfit.problem}".strip())
        raise Misfit(f"is {shown(found)}, of none of its types: {'; '.join(problems)}")


class OptionalKind:
    """A value, or `None`."""

    def __init__(self, inner: Conversion) -> None:
        self._inner = inner

    def dump(self, value: Any, /) -> Any:
        return None if value is None else self._inner.dump(value)

    def load(self, found: Any, /) -> Any:
        return None if found is None else self._inner.load(found)


class Fields:
    """A JSON object with names that are known: a dataclass, or a TypedDict."""

    def __init__(self, kind: type) -> None:
        self.kind: Any = kind
        self.is_dict = typing.is_typeddict(kind)
        #: Name, conversion, and whether it must be there.
        self.fields: list[tuple[str, Conversion, bool]] = []

    def dump(self, value: Any, /) -> dict[str, Any]:
        kind: Any = Mapping if self.is_dict else self.kind
        if not isinstance(value, kind):
            raise Misfit(f"is {shown(value)}, no {self.kind.__name__}")
        if not self.is_dict and type(value) is not self.kind:
            raise self._of_subclass(value)
        if self.is_dict and (unknown := value.keys() - {name for name, _, _ in self.fields}):
            raise Misfit(f"has {', '.join(sorted(map(repr, unknown)))}, which {self.kind.__name__} has not")
        written = {}
        for name, conversion, is_required in self.fields:
            if self.is_dict and name not in value:
                if is_required:
                    raise Misfit("is missing").below(self._step(name))
                continue
            try:
                written[name] = conversion.dump(value[name] if self.is_dict else getattr(value, name))
            except Misfit as misfit:
                raise misfit.below(self._step(name)) from misfit.__cause__
        return written

    def load(self, found: Any, /) -> Any:
        if not isinstance(found, dict):
            raise Misfit(f"is {shown(found)}, no object with the members of {self.kind.__name__}")
        read = {}
        for name, conversion, is_required in self.fields:
            if name in found:
                try:
                    read[name] = conversion.load(found[name])
                except Misfit as misfit:
                    raise misfit.below(self._step(name)) from misfit.__cause__
            elif is_required:
                raise Misfit("is missing").below(self._step(name))
        if self.is_dict:
            return read
        try:
            return self.kind(**read)
        except (TypeError, ValueError) as error:
            # Its own `__post_init__`.
            raise Misfit(f"was refused by {self.kind.__name__}: {error}") from error

    def _of_subclass(self, value: Any) -> Misfit:
        name, own = type(value).__name__, self.kind.__name__
        known = {name for name, _, _ in self.fields}
        lost = [field.name for field in dataclasses.fields(value) if field.name not in known and field.init]
        without = f" without {', '.join(lost)}" if lost else ""
        return Misfit(
            f"is {shown(value)}, which would come back as a {own}{without}: annotate it as {name}, "
            f"or send a {own}"
        )

    def _step(self, name: str) -> str:
        return f"[{name!r}]" if self.is_dict else f".{name}"


class Untyped:
    """What is annotated as `Any`, or not at all: only what JSON has comes back as it was."""

    def dump(self, value: Any, /) -> Any:
        if value is None or (isinstance(value, str | int) and not isinstance(value, Enum)):
            return value
        if isinstance(value, float):
            return Float().dump(value)
        if isinstance(value, dict):
            return Object(Scalar(str), self).dump(value)
        if isinstance(value, list):
            return each(value, self.dump)
        raise Misfit(f"is a {type(value).__name__}, but no annotation says so: it would not come back as one")

    def load(self, found: Any, /) -> Any:
        return found


def each(values: Any, convert: Callable[[Any], Any]) -> list[Any]:
    """All of them, converted; an error has the number of the first that failed."""
    converted: list[Any] = []
    try:
        for value in values:
            converted.append(convert(value))  # noqa: PERF401 -- its length is the number of what failed
    except Misfit as misfit:
        raise misfit.below(f"[{len(converted)}]") from misfit.__cause__
    return converted


def remedy_for(value: Any, kind: Any) -> str:
    """What makes a value of the kind, or the other way round; for the end of an error, and maybe nothing."""
    name, is_number = kind.__name__, isinstance(value, int | float) and not isinstance(value, bool)
    if value is None:
        return f"; annotate it as {name} | None"
    if kind is date and isinstance(value, datetime):
        return "; write value.date()"
    if kind is Decimal and is_number:
        return "; write Decimal(str(value))"
    if kind is str and isinstance(value, UUID | Decimal | int | float):
        return "; write str(value)"
    if isinstance(value, str) and hasattr(kind, "fromisoformat"):
        return f"; write {name}.fromisoformat(value)"
    if isinstance(value, str) and kind is not bool:
        return f"; write {name}(value)"
    return ""


def shown(value: Any) -> str:
    """What it is, for an error, which may be logged elsewhere than the value should be."""
    name = type(value).__name__
    return "None" if value is None else f"an {name}" if name[0] in "aeio" else f"a {name}"
