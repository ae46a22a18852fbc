"""Columns of a database as columns of Spark."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    TimestampNTZType,
    TimestampType,
)
from sqlalchemy import types

from conquiet.spark.jobs.exit_codes import ExitCode, JobError

_SCALE = 18

_PLAIN: tuple[tuple[type[types.TypeEngine[Any]], DataType], ...] = (
    (types.Boolean, BooleanType()),
    (types.Integer, LongType()),
    (types.Float, DoubleType()),
    (types.Date, DateType()),
    (types.LargeBinary, BinaryType()),
    (types.JSON, StringType()),
    (types.Uuid, StringType()),
    (types.String, StringType()),
)


def type_of_column(name: str, kind: types.TypeEngine[Any]) -> DataType:
    """Spark's type for a column of a table.

    Raises:
        JobError: it has none.
    """
    if isinstance(kind, types.DateTime):
        return TimestampType() if kind.timezone else TimestampNTZType()
    if isinstance(kind, types.Numeric) and not isinstance(kind, types.Float):
        return DecimalType(min(kind.precision or 38, 38), kind.scale if kind.scale is not None else _SCALE)
    for known, spark_type in _PLAIN:
        if isinstance(kind, known):
            return spark_type
    raise JobError(
        ExitCode.DATA, f"column {name!r} of type {kind!r} cannot be read: give a --query that casts it"
    )


def type_of_values(name: str, values: Sequence[Any]) -> DataType:
    """Spark's type for what a query gave in its first rows; text if all of it is null.

    Raises:
        JobError: the values are of types that have none in common.
    """
    kinds = {_type_of_value(name, value) for value in values if value is not None}
    if kinds == {LongType(), DoubleType()}:
        return DoubleType()
    if len(kinds) > 1:
        found = ", ".join(sorted(kind.simpleString() for kind in kinds))
        raise JobError(ExitCode.DATA, f"column {name!r} of the query has values of types {found}: cast it")
    return kinds.pop() if kinds else StringType()


def plain_value(value: Any) -> Any:
    """A value of a driver as one that Arrow knows."""
    if isinstance(value, dict | list):
        return json.dumps(value)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, uuid.UUID | time | timedelta):
        return str(value)
    return bytes(value) if isinstance(value, memoryview | bytearray) else value


def _type_of_value(name: str, value: Any) -> DataType:
    match plain_value(value):
        case bool():
            return BooleanType()
        case int():
            return LongType()
        case float():
            return DoubleType()
        case Decimal():
            return DecimalType(38, _SCALE)
        case datetime() as moment:
            return TimestampNTZType() if moment.tzinfo is None else TimestampType()
        case date():
            return DateType()
        case bytes():
            return BinaryType()
        case str():
            return StringType()
    raise JobError(ExitCode.DATA, f"column {name!r} of the query has a {type(value).__name__}: cast it")
