"""One Spark session for all measurements: two cores, a million rows of about 200 bytes in its memory."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
from functools import cache
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- as its docs call it

from benchmarks.errors import UnavailableError

ROWS = 1_000_000


@cache
def open_session() -> SparkSession:
    """Started when first asked for, stopped with the process.

    Raises:
        UnavailableError: there is no Java.
    """
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise UnavailableError("no Java")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # The workers import the data source that ours is compared with.
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    session: SparkSession = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "3g")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    atexit.register(session.stop)
    return session


@cache
def orders(rows: int) -> DataFrame:
    """`key` and `data`, in two partitions, in the memory of the session."""
    numbers = open_session().range(0, rows, 1, 2)
    order = F.struct(
        F.col("id").alias("number"),
        F.format_string("customer-%06d", F.col("id") % 977).alias("customer"),
        F.lit("EUR").alias("currency"),
        (F.col("id") % 500 + F.lit(0.25)).alias("amount"),
        F.lit("SKU-000417 SKU-001093 SKU-000233 SKU-000871").alias("items"),
        F.lit(False).alias("isGift"),
        F.lit("leave it next door, or with the neighbours").alias("note"),
    )
    df = numbers.select(
        F.format_string("customer-%06d", F.col("id") % 977).alias("key"), F.to_json(order).alias("data")
    ).persist()
    df.count()
    return df
