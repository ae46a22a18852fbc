"""What the jobs have Spark do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 -- as everybody calls it

from conquiet.spark.jobs.credentials import Credentials
from conquiet.spark.jobs.messages import dedupe_options, messages_of
from conquiet.spark.jobs.named_columns import check_columns
from conquiet.spark.jobs.plans import JobPlan
from conquiet.spark.jobs.report import Report
from conquiet.spark.jobs.sources import open_source
from conquiet.spark.jobs.task_progress import Progress
from conquiet.spark.jobs.windows import has_null, totals_of
from conquiet.spark.source import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def do_job(spark: SparkSession, plan: JobPlan, credentials: Credentials) -> Report:
    """Read, compute, publish; the report says how many rows were read and how many messages were sent."""
    register(spark)
    df = open_source(spark, plan.source, credentials)
    read = Observation()
    counts = [F.count(F.lit(1)).alias("rows")]
    if plan.window is not None:
        check_columns(df, plan.window.used)
        counts.append(F.count_if(has_null(plan.window)).alias("rows_with_null"))
        totals = totals_of(df.observe(read, *counts), plan.window)
        messages = messages_of(totals, plan.target, is_of_totals=True)
    else:
        messages = messages_of(df.observe(read, *counts), plan.target, is_of_totals=False)
    sent = Observation()
    writer = messages.observe(sent, F.count(F.lit(1)).alias("messages")).write.format("redis-stream")
    options = plan.target.place | dedupe_options(messages, plan.target)
    if plan.target.traceparent is not None:
        options["traceparent"] = plan.target.traceparent
    with Progress(spark, plan.job, plan.progress_every_s):
        writer.mode("append").options(url=credentials.redis_url, **options).save()
    return {
        "rows": read.get["rows"],
        **({"rows_with_null": read.get["rows_with_null"]} if plan.window is not None else {}),
        # What was sent, also if it had been added before and was not added again.
        "messages": sent.get["messages"],
        "application_id": spark.sparkContext.applicationId,
        "master": spark.sparkContext.master,
    }
