"""Columns of a database as columns of Spark."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

from pyspark.sql import types as spark_types
from sqlalchemy import types

from conquiet.spark.jobs.exit_codes import ExitCode, JobError

_SCALE = 18

_OF_COLUMNS: tuple[tuple[type[types.TypeEngine[Any]], spark_types.DataType], ...] = (
    (types.Boolean, spark_types.BooleanType()),
    (types.Integer, spark_types.LongType()),
    (types.Float, spark_types.DoubleType()),
    (types.Date, spark_types.DateType()),
    (types.LargeBinary, spark_types.BinaryType()),
    (types.JSON, spark_types.StringType()),
    (types.Uuid, spark_types.StringType()),
    (types.String, spark_types.StringType()),
)

#: A bool is an int in Python, and a datetime a date: the first that fits counts.
_OF_VALUES: tuple[tuple[type, spark_types.DataType], ...] = (
    (bool, spark_types.BooleanType()),
    (int, spark_types.LongType()),
    (float, spark_types.DoubleType()),
    (Decimal, spark_types.DecimalType(38, _SCALE)),
    (date, spark_types.DateType()),
    (bytes, spark_types.BinaryType()),
    (str, spark_types.StringType()),
)


def type_of_column(name: str, kind: types.TypeEngine[Any]) -> spark_types.DataType:
    """Spark's type for a column of a table.

    Raises:
        JobError: it has none.
    """
    if isinstance(kind, types.DateTime):
        return spark_types.TimestampType() if kind.timezone else spark_types.TimestampNTZType()
    if isinstance(kind, types.Numeric) and not isinstance(kind, types.Float):
        return spark_types.DecimalType(
            min(kind.precision or 38, 38), kind.scale if kind.scale is not None else _SCALE
        )
    for known, spark_type in _OF_COLUMNS:
        if isinstance(kind, known):
            return spark_type
    raise JobError(
        ExitCode.DATA, f"column {name!r} of type {kind!r} cannot be read: give a --query that casts it"
    )


def type_of_values(name: str, values: Sequence[Any]) -> spark_types.DataType:
    """Spark's type for what a query gave in its first rows; text if all of it is null.

    Raises:
        JobError: the values are of types that have none in common.
    """
    kinds = {_type_of_value(name, value) for value in values if value is not None}
    if kinds == {spark_types.LongType(), spark_types.DoubleType()}:
        return spark_types.DoubleType()
    if len(kinds) > 1:
        found = ", ".join(sorted(kind.simpleString() for kind in kinds))
        raise JobError(ExitCode.DATA, f"column {name!r} of the query has values of types {found}: cast it")
    return kinds.pop() if kinds else spark_types.StringType()


def plain_value(value: Any) -> Any:
    """A value of a driver as one that Arrow knows."""
    if isinstance(value, dict | list):
        return json.dumps(value)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, uuid.UUID | time | timedelta):
        return str(value)
    return bytes(value) if isinstance(value, memoryview | bytearray) else value


def _type_of_value(name: str, value: Any) -> spark_types.DataType:
    plain = plain_value(value)
    if isinstance(plain, datetime):
        return spark_types.TimestampNTZType() if plain.tzinfo is None else spark_types.TimestampType()
    for known, spark_type in _OF_VALUES:
        if isinstance(plain, known):
            return spark_type
    raise JobError(ExitCode.DATA, f"column {name!r} of the query has a {type(value).__name__}: cast it")
