"""Columns as JSON and back: what Spark's JVM writes is what it reads again."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 -- as everybody calls it
from pyspark.sql.types import (
    ArrayType,
    AtomicType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

_TIME = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"

#: For to_json and from_json alike: without them microseconds and nulls would be lost.
JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "timestampFormat": _TIME + "XXX",
    "timestampNTZFormat": _TIME,
    "dateFormat": "yyyy-MM-dd",
    "timeZone": "UTC",
}

_PLAIN: tuple[type[AtomicType], ...] = (
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)


def json_of(columns: list[str], schema: StructType) -> Column:
    """The columns as one JSON object; a NaN or an infinity, for which JSON has no word, fails the query.

    Raises:
        TypeError: a column has a type that would not come back.
    """
    fields = {field.name: field.dataType for field in schema.fields}
    for name in columns:
        _check_type(name, fields[name])
    text = F.to_json(F.struct(*(F.col(_quoted(name)) for name in columns)), JSON_OPTIONS)
    for name in columns:
        strange = _has_strange_number(F.col(_quoted(name)), fields[name])
        if strange is not None:
            refusal = F.raise_error(
                F.lit(f"column {name} has a NaN or an infinity, which JSON has no word for")
            )
            text = F.when(F.coalesce(strange, F.lit(False)), refusal).otherwise(text)
    return text


def columns_of(data: Column, schema: StructType | str) -> Column:
    """The struct that a JSON object stands for; null where it is none."""
    return F.from_json(data, schema, JSON_OPTIONS)


def _check_type(path: str, kind: DataType) -> None:
    match kind:
        case StructType():
            for field in kind.fields:
                _check_type(f"{path}.{field.name}", field.dataType)
        case ArrayType():
            _check_type(f"{path}[]", kind.elementType)
        case MapType():
            if not isinstance(kind.keyType, StringType):
                raise TypeError(
                    f"column {path} has keys of type {kind.keyType.simpleString()}; JSON has text only"
                )
            _check_type(f"{path}[]", kind.valueType)
        case _ if not isinstance(kind, _PLAIN):
            raise TypeError(
                f"column {path} of type {kind.simpleString()} cannot be written as JSON; cast it first"
            )


def _has_strange_number(value: Column, kind: DataType) -> Column | None:
    match kind:
        case DoubleType() | FloatType():
            return F.isnan(value) | (F.abs(value) == F.lit(float("inf")))
        case StructType():
            found = [_has_strange_number(value.getField(field.name), field.dataType) for field in kind.fields]
            return _any(found)
        case ArrayType():
            return _in_elements(value, kind.elementType)
        case MapType():
            return _in_elements(F.map_values(value), kind.valueType)
    return None


def _in_elements(values: Column, kind: DataType) -> Column | None:
    if _has_strange_number(F.lit(None), kind) is None:
        return None

    def is_strange(element: Column) -> Column:
        found = _has_strange_number(element, kind)
        return F.lit(False) if found is None else F.coalesce(found, F.lit(False))

    return F.exists(values, is_strange)


def _any(found: list[Column | None]) -> Column | None:
    result: Column | None = None
    for column in found:
        if column is not None:
            column = F.coalesce(column, F.lit(False))
            result = column if result is None else result | column
    return result


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
