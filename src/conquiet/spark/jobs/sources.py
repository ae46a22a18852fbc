"""The DataFrame that a job reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 -- as everybody calls it
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from conquiet.spark.jobs.credentials import Credentials
from conquiet.spark.jobs.database_source import rows_of_database
from conquiet.spark.jobs.exit_codes import ExitCode, JobError
from conquiet.spark.jobs.named_columns import check_columns, column
from conquiet.spark.jobs.plans import SourcePlan
from conquiet.spark.json_columns import columns_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ENTRIES = StructType([StructField("timestamp", TimestampType()), StructField("data", StringType())])


def open_source(spark: SparkSession, source: SourcePlan, credentials: Credentials) -> DataFrame:
    """What is to be read; nothing is, but for a look at its columns."""
    df = _opened(spark, source, credentials)
    return df.where(source.where) if source.where else df


def _opened(spark: SparkSession, source: SourcePlan, credentials: Credentials) -> DataFrame:
    if source.topic or source.stream:
        return _messages(spark, source, credentials)
    if source.files:
        reader = spark.read.format(source.format or _format_of(source.files[0])).options(
            **dict(source.options)
        )
        return (reader.schema(source.schema) if source.schema else reader).load(list(source.files))
    if source.location == "database":
        return _cast(rows_of_database(spark, source, credentials.database_url or ""), source.schema)
    if source.location == "jdbc":
        return _cast(_jdbc(spark, source, credentials), source.schema)
    return _cast(spark.sql(source.query) if source.query else spark.table(source.table or ""), source.schema)


def _messages(spark: SparkSession, source: SourcePlan, credentials: Credentials) -> DataFrame:
    place = {"topic": source.topic, "stream": source.stream, "start": source.start, "end": source.end}
    options = {name: value for name, value in place.items() if value is not None} | dict(source.options)
    reader = spark.read.format("redis-stream").schema(_ENTRIES)
    entries = reader.options(url=credentials.redis_url, **options).load()
    payload = columns_of(F.col("data"), source.schema or "").alias("payload")
    return entries.select("timestamp", payload).select("timestamp", "payload.*")


def _jdbc(spark: SparkSession, source: SourcePlan, credentials: Credentials) -> DataFrame:
    what = {"dbtable": source.table} if source.table else {"query": source.query}
    divided: dict[str, Any] = {}
    if source.partition_column:
        # Spark divides by a column of `dbtable` only.
        what = {"dbtable": source.table or f"({source.query}) conquiet_rows"}
        options = _reader(spark, what, source, credentials)
        bounds = options.load().agg(F.min(source.partition_column), F.max(source.partition_column)).head()
        if bounds is not None and bounds[0] is not None:
            divided = {
                "partitionColumn": source.partition_column,
                "lowerBound": int(bounds[0]),
                "upperBound": int(bounds[1]) + 1,
                "numPartitions": source.tasks,
            }
    df: DataFrame = _reader(spark, what, source, credentials).options(**divided).load()
    return df


def _reader(spark: SparkSession, what: dict[str, Any], source: SourcePlan, credentials: Credentials) -> Any:
    login = {"user": credentials.jdbc_user, "password": credentials.jdbc_password}
    given = {name: value for name, value in login.items() if value is not None}
    reader = spark.read.format("jdbc").options(url=credentials.jdbc_url, **what, **given)
    return reader.options(**dict(source.options))


def _cast(df: DataFrame, schema: str | None) -> DataFrame:
    if schema is None:
        return df
    wanted = StructType.fromDDL(schema)
    assert isinstance(wanted, StructType)  # noqa: S101 -- a list of columns is nothing else
    check_columns(df, (field.name for field in wanted.fields))
    columns = [column(field.name).cast(field.dataType).alias(field.name) for field in wanted.fields]
    return df.select(*columns)


def _format_of(path: str) -> str:
    suffix = Path(path).suffix.removeprefix(".").lower()
    formats = {"parquet": "parquet", "csv": "csv", "json": "json", "jsonl": "json", "ndjson": "json"}
    if suffix not in formats:
        raise JobError(ExitCode.ARGUMENTS, f"the suffix of {path!r} says no format: give --format")
    return formats[suffix]
