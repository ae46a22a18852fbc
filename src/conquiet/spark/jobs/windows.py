"""Aggregates by group and window of time."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 -- as everybody calls it

from conquiet.spark.jobs.named_columns import column
from conquiet.spark.jobs.plans import WindowPlan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_FUNCTIONS = {"sum": F.sum, "avg": F.avg, "min": F.min, "max": F.max}


def totals_of(df: DataFrame, plan: WindowPlan) -> DataFrame:
    """One row for each group and window: its columns, `window_start`, `window_end`, `count`, the measures."""
    window = F.window(column(plan.time), plan.length, plan.slide).alias("window")
    measures = [
        _FUNCTIONS[function](column(name)).alias(f"{function}_{name}") for function, name in plan.measures
    ]
    grouped = df.groupBy(*(column(name) for name in plan.by), window)
    totals = grouped.agg(F.count(F.lit(1)).alias("count"), *measures)
    bounds = [F.col("window.start").alias("window_start"), F.col("window.end").alias("window_end")]
    rest = [column(name) for name in totals.columns if name not in (*plan.by, "window")]
    return totals.select(*(column(name) for name in plan.by), *bounds, *rest)


def has_null(plan: WindowPlan) -> Column:
    """Whether a row lacks a value that the totals need: it is left out of them, or is a group of its own."""
    return reduce(lambda one, other: one | other, [column(name).isNull() for name in plan.used])
