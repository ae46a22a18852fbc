"""The pinned PySpark runs on the Java that is here."""

from __future__ import annotations


def test_a_python_function_runs_on_spark(spark):
    doubled = spark.sparkContext.parallelize(range(10), 1).map(lambda number: 2 * number).sum()

    assert doubled == 90
