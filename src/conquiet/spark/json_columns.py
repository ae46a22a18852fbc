"""Columns as JSON and back: what Spark's JVM writes is what it reads again."""

from __future__ import annotations

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
    """The columns as one JSON object; a NaN or an infinity, which JSON cannot express, fails the query.

    Raises:
        TypeError: a column has a type that would not come back.
    """
    fields = {field.name: field.dataType for field in schema.fields}
    for name in columns:
        _check_type(name, fields[name])
    text = F.to_json(F.struct(*(column_named(name) for name in columns)), JSON_OPTIONS)
    for name in columns:
        is_refused = _has_nan_or_infinity(column_named(name), fields[name])
        if is_refused is not None:
            refusal = F.raise_error(
                F.lit(f"column {name} has a NaN or an infinity, which JSON cannot express")
            )
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


def _has_nan_or_infinity(value: Column, kind: types.DataType) -> Column | None:
    """Whether there is one in the value, null if the value is; `None` if its type has none."""
    match kind:
        case types.DoubleType() | types.FloatType():
            return F.isnan(value) | (F.abs(value) == F.lit(float("inf")))
        case types.StructType():
            found = [
                _has_nan_or_infinity(value.getField(field.name), field.dataType) for field in kind.fields
            ]
            columns = [F.coalesce(column, F.lit(False)) for column in found if column is not None]
            return reduce(or_, columns) if columns else None
        case types.ArrayType():
            return _have_nan_or_infinity(value, kind.elementType)
        case types.MapType():
            return _have_nan_or_infinity(F.map_values(value), kind.valueType)
    return None


def _have_nan_or_infinity(values: Column, kind: types.DataType) -> Column | None:
    def is_refused(element: Column) -> Column:
        found = _has_nan_or_infinity(element, kind)
        return F.lit(False) if found is None else F.coalesce(found, F.lit(False))

    return None if _has_nan_or_infinity(F.lit(None), kind) is None else F.exists(values, is_refused)
