"""What the jobs have Spark do: read, compute totals, send messages."""

from __future__ import annotations

import secrets
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 -- as its docs call it

from conquiet.spark.jobs.credentials import Credentials
from conquiet.spark.jobs.exit_codes import ExitCode, JobError
from conquiet.spark.jobs.plans import JobPlan, WindowPlan
from conquiet.spark.jobs.sources import check_columns, open_source
from conquiet.spark.jobs.task_progress import Progress
from conquiet.spark.json_columns import column_named, json_of
from conquiet.spark.source import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Beside the columns of a message.
_DEDUPE_COLUMN = "conquiet_dedupe_id"

_FUNCTIONS = {"sum": F.sum, "avg": F.avg, "min": F.min, "max": F.max}


def do_job(spark: SparkSession, plan: JobPlan, credentials: Credentials) -> dict[str, Any]:
    """Read, compute, publish; returns how many rows were read and how many messages were sent."""
    register(spark)
    df = open_source(spark, plan.source, credentials)
    read, sent = Observation(), Observation()
    counts = [F.count(F.lit(1)).alias("rows")]
    if plan.window is not None:
        check_columns(df, plan.window.used)
        # Such a row is left out of the totals, or is a group of its own.
        has_null = reduce(or_, [column_named(name).isNull() for name in plan.window.used])
        counts.append(F.count_if(has_null).alias("rows_with_null"))
    df = df.observe(read, *counts)
    messages = messages_of(df if plan.window is None else totals_of(df, plan.window), plan)
    writer = messages.observe(sent, F.count(F.lit(1)).alias("messages")).write.format("redis-stream")
    options = plan.target.address | {"retryTimeoutMs": str(plan.retry_timeout_ms)}
    if _DEDUPE_COLUMN in messages.columns:
        options["dedupeColumn"] = _DEDUPE_COLUMN
    elif plan.target.dedupe_id is not None:
        options["dedupeId"] = plan.target.dedupe_id
    if plan.target.traceparent is not None:
        options["traceparent"] = plan.target.traceparent
    with Progress(spark, plan.job, plan.progress_every_s):
        writer.mode("append").options(url=credentials.redis_url, **options).save()
    return {
        **read.get,
        # What was sent, also if it had been added before and was not added again.
        **sent.get,
        "application_id": spark.sparkContext.applicationId,
        "master": spark.sparkContext.master,
    }


def totals_of(df: DataFrame, plan: WindowPlan) -> DataFrame:
    """One row for each group and window: its columns, `window_start`, `window_end`, `count`, the measures."""
    groups = [column_named(name) for name in plan.by]
    window = F.window(column_named(plan.time), plan.length, plan.slide).alias("window")
    measures = [
        _FUNCTIONS[function](column_named(name)).alias(f"{function}_{name}")
        for function, name in plan.measures
    ]
    totals = df.groupBy(*groups, window).agg(F.count(F.lit(1)).alias("count"), *measures)
    bounds = [F.col("window.start").alias("window_start"), F.col("window.end").alias("window_end")]
    rest = [column_named(name) for name in totals.columns if name not in (*plan.by, "window")]
    return totals.select(*groups, *bounds, *rest)


def messages_of(df: DataFrame, plan: JobPlan) -> DataFrame:
    """The DataFrame that `redis-stream` writes.

    Raises:
        JobError: a column is not there, or has a type that cannot be written as JSON.
    """
    target = plan.target
    check_columns(df, target.used)
    try:
        data = json_of(list(target.columns or df.columns), df.schema)
        columns = [data.alias("data")]
        if target.dedupe_columns:
            names = list(target.dedupe_columns)
            # Rows without any value would all have one id, and all but the first would be dropped.
            is_empty = reduce(and_, (column_named(name).isNull() for name in names))
            noun = "column" if len(names) == 1 else "columns"
            refusal = F.raise_error(F.lit(f"a row has no value in the dedupe {noun} {', '.join(names)}"))
            values = F.when(is_empty, refusal).otherwise(json_of(names, df.schema))
            columns.append(F.concat(F.lit(f"{target.dedupe_id or ''}:"), values).alias(_DEDUPE_COLUMN))
        elif plan.window is not None:
            # No two totals of a write are alike, and a shuffle gives them in any order: so by their text.
            write_id = target.dedupe_id or secrets.token_hex(10)
            columns.append(F.concat(F.lit(f"{write_id}:"), F.sha2(data, 256)).alias(_DEDUPE_COLUMN))
    except TypeError as error:
        raise JobError(ExitCode.DATA, str(error)) from error
    if target.key is not None:
        columns.append(column_named(target.key).cast("string").alias("key"))
    if target.headers:
        pairs = [F.lit(part) for pair in target.headers for part in pair]
        columns.append(F.create_map(*pairs).alias("headers"))
    return df.select(*columns)
