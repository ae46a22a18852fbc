"""Spark and streams: the data source `redis-stream`, and what DataFrames need around it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from conquiet.extras import needs_extra

if TYPE_CHECKING:
    from conquiet.spark.database_sink import drain_batch
    from conquiet.spark.dataframes import as_messages, publish, unpack
    from conquiet.spark.errors import DataLossError, MalformedRowsError, RowsDifferError
    from conquiet.spark.source import RedisStreamSource, register

# Loaded on first use: a worker of Spark needs one module of this package, not all that the driver needs.
_HOME_OF = {
    "DataLossError": "errors",
    "MalformedRowsError": "errors",
    "RedisStreamSource": "source",
    "RowsDifferError": "errors",
    "as_messages": "dataframes",
    "drain_batch": "database_sink",
    "publish": "dataframes",
    "register": "source",
    "unpack": "dataframes",
}

__all__ = [
    "DataLossError",
    "MalformedRowsError",
    "RedisStreamSource",
    "RowsDifferError",
    "as_messages",
    "drain_batch",
    "publish",
    "register",
    "unpack",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'conquiet.spark' has no attribute {name!r}")
    with needs_extra("spark", "pyspark", "pyarrow", "pandas", part="conquiet.spark"):
        value = getattr(import_module(f"conquiet.spark.{home}"), name)
    globals()[name] = value
    return value
