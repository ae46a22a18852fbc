"""Columns as JSON and back: what Spark's JVM writes is what it reads again."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_

from pyspark.sql import Column, types
from pyspark.sql import functions as F  # noqa: N812 -- as its docs call it

_TIME = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"

#: For to_json and from_json alike: without them microseconds and nulls would be lost.
JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "timestampFormat": _TIME + "XXX",
    "timestampNTZFormat": _TIME,
    "dateFormat": "yyyy-MM-dd",
    "timeZone": "UTC",
}

_PLAIN: tuple[type[types.AtomicType], ...] = (
    types.BinaryType,
    types.BooleanType,
    types.ByteType,
    types.DateType,
    types.DecimalType,
    types.DoubleType,
    types.FloatType,
    types.IntegerType,
    types.LongType,
    types.ShortType,
    types.StringType,
    types.TimestampNTZType,
    types.TimestampType,
)


def column_named(name: str) -> Column:
    """The column of exactly this name: a dot in it is a dot, not a field."""
    return F.col("`" + name.replace("`", "``") + "`")


def json_of(columns: list[str], schema: types.StructType) -> Column:
    """The columns as one JSON object, with decimals as texts: a reader's numbers would round them.

    A NaN, an infinity, or text that is not UTF-8, which JSON cannot express, fails the query.

    Raises:
        TypeError: a column has a type that would not come back.
    """
    fields = {field.name: field.dataType for field in schema.fields}
    for name in columns:
        _check_type(name, fields[name])
    exact = [column_named(name).cast(_with_texts(fields[name])).alias(name) for name in columns]
    text = F.to_json(F.struct(*exact), JSON_OPTIONS)
    for name in columns:
        for is_found, what in (
            (_is_nan_or_infinity, "a NaN or an infinity"),
            (_is_not_utf8, "text that is not UTF-8"),
        ):
            is_refused = _within(column_named(name), fields[name], is_found)
            if is_refused is not None:
                refusal = F.raise_error(F.lit(f"column {name} has {what}, which JSON cannot express"))
                text = F.when(F.coalesce(is_refused, F.lit(False)), refusal).otherwise(text)
    return text


def columns_of(data: Column, schema: types.StructType | str) -> Column:
    """The struct of the members of a JSON object; null where `data` is anything else."""
    return F.from_json(data, schema, JSON_OPTIONS)


def _check_type(path: str, kind: types.DataType) -> None:
    match kind:
        case types.StructType():
            for field in kind.fields:
                _check_type(f"{path}.{field.name}", field.dataType)
        case types.ArrayType():
            _check_type(f"{path}[]", kind.elementType)
        case types.MapType():
            if not isinstance(kind.keyType, types.StringType):
                raise TypeError(
                    f"column {path} has keys of type {kind.keyType.simpleString()}; JSON has text only"
                )
            _check_type(f"{path}[]", kind.valueType)
        case _ if not isinstance(kind, _PLAIN):
            raise TypeError(
                f"column {path} of type {kind.simpleString()} cannot be written as JSON; cast it first"
            )


def _with_texts(kind: types.DataType) -> types.DataType:
    """The type with text instead of each decimal in it."""
    match kind:
        case types.DecimalType():
            return types.StringType()
        case types.StructType():
            fields = [
                types.StructField(one.name, _with_texts(one.dataType), one.nullable) for one in kind.fields
            ]
            return types.StructType(fields)
        case types.ArrayType():
            return types.ArrayType(_with_texts(kind.elementType), kind.containsNull)
        case types.MapType():
            return types.MapType(kind.keyType, _with_texts(kind.valueType), kind.valueContainsNull)
    return kind


#: Whether a value of a type without parts is of some kind; `None` if no value of the type can be.
_Test = Callable[[Column, types.DataType], Column | None]


def _is_nan_or_infinity(value: Column, kind: types.DataType) -> Column | None:
    if isinstance(kind, types.DoubleType | types.FloatType):
        return F.isnan(value) | (F.abs(value) == F.lit(float("inf")))
    return None


def _is_not_utf8(value: Column, kind: types.DataType) -> Column | None:
    return ~F.is_valid_utf8(value) if isinstance(kind, types.StringType) else None


def _within(value: Column, kind: types.DataType, test: _Test) -> Column | None:
    """Whether the test finds something in the value, null if the value is; `None` if it cannot."""
    match kind:
        case types.StructType():
            found = [_within(value.getField(field.name), field.dataType, test) for field in kind.fields]
            return _any_of(found)
        case types.ArrayType():
            return _in_some(value, kind.elementType, test)
        case types.MapType():
            keys = _in_some(F.map_keys(value), kind.keyType, test)
            return _any_of([keys, _in_some(F.map_values(value), kind.valueType, test)])
    return test(value, kind)


def _any_of(found: list[Column | None]) -> Column | None:
    columns = [F.coalesce(column, F.lit(False)) for column in found if column is not None]
    return reduce(or_, columns) if columns else None


def _in_some(values: Column, kind: types.DataType, test: _Test) -> Column | None:
    def is_found(element: Column) -> Column:
        found = _within(element, kind, test)
        return F.lit(False) if found is None else F.coalesce(found, F.lit(False))

    return None if _within(F.lit(None), kind, test) is None else F.exists(values, is_found)
