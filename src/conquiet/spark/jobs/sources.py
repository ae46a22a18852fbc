"""The DataFrame that a job reads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 -- as its docs call it
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from conquiet.spark.jobs.credentials import Credentials
from conquiet.spark.jobs.database_source import rows_of_database
from conquiet.spark.jobs.exit_codes import ExitCode, JobError
from conquiet.spark.jobs.jdbc import driver_of
from conquiet.spark.jobs.plans import SourcePlan
from conquiet.spark.json_columns import column_named, columns_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ENTRIES = StructType([StructField("timestamp", TimestampType()), StructField("data", StringType())])

_FORMATS = {"parquet": "parquet", "csv": "csv", "json": "json", "jsonl": "json", "ndjson": "json"}


def open_source(spark: SparkSession, source: SourcePlan, credentials: Credentials) -> DataFrame:
    """What is to be read; of which nothing is read yet but its columns.

    Raises:
        JobError: a column is not there, or the format of files is unknown.
    """
    if source.topic or source.stream:
        df = _messages(spark, source, credentials)
    elif source.files:
        suffix = Path(source.files[0]).suffix.removeprefix(".").lower()
        kind = source.format or _FORMATS.get(suffix)
        if kind is None:
            raise JobError(
                ExitCode.ARGUMENTS, f"the suffix of {source.files[0]!r} is of no known format: give --format"
            )
        reader = spark.read.format(kind).options(**dict(source.options))
        df = (reader.schema(source.schema) if source.schema else reader).load(list(source.files))
    else:
        if source.location == "database":
            df = rows_of_database(spark, source, credentials.database_url or "")
        elif source.location == "jdbc":
            df = _jdbc_rows(spark, source, credentials)
        else:
            df = spark.sql(source.query) if source.query else spark.table(source.table or "")
        if source.schema is not None:
            fields = StructType.fromDDL(source.schema).fields  # type: ignore[attr-defined]  # of columns
            check_columns(df, (field.name for field in fields))
            df = df.select(
                *[column_named(field.name).cast(field.dataType).alias(field.name) for field in fields]
            )
    return df.where(source.where) if source.where else df


def check_columns(df: DataFrame, names: Iterable[str]) -> None:
    """Refuse names that the rows do not have.

    Raises:
        JobError: with the names, and with those that are there.
    """
    missing = sorted({name for name in names if name not in df.columns})
    if missing:
        raise JobError(
            ExitCode.DATA, f"there is no column {', '.join(missing)}; there are {', '.join(df.columns)}"
        )


def _messages(spark: SparkSession, source: SourcePlan, credentials: Credentials) -> DataFrame:
    given = {"topic": source.topic, "stream": source.stream, "start": source.start, "end": source.end}
    options = {name: value for name, value in given.items() if value is not None} | dict(source.options)
    reader = spark.read.format("redis-stream").schema(_ENTRIES)
    entries = reader.options(url=credentials.redis_url, **options).load()
    payload = columns_of(F.col("data"), source.schema or "").alias("payload")
    return entries.select("timestamp", payload).select("timestamp", "payload.*")


def _jdbc_rows(spark: SparkSession, source: SourcePlan, credentials: Credentials) -> DataFrame:
    login = {"user": credentials.jdbc_user, "password": credentials.jdbc_password}
    options: dict[str, Any] = {name: value for name, value in login.items() if value is not None}
    # Spark divides by a column of `dbtable` only.
    rows = {"dbtable": source.table or f"({source.query}) conquiet_rows"}
    if source.query and not source.partition_column:
        rows = {"query": source.query}
    driver = driver_of(credentials.jdbc_url or "")
    options |= {"url": credentials.jdbc_url, **driver, **rows, **dict(source.options)}
    if source.partition_column:
        column = source.partition_column
        df = spark.read.format("jdbc").options(**options).load()
        bounds = df.agg(F.min(column), F.max(column)).head()
        if bounds is not None and bounds[0] is not None:
            options |= {
                "partitionColumn": column,
                "lowerBound": int(bounds[0]),
                "upperBound": int(bounds[1]) + 1,
                "numPartitions": source.tasks,
            }
    return spark.read.format("jdbc").options(**options).load()
