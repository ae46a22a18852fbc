"""The pinned PySpark runs on the Java that is here."""

from __future__ import annotations

import shutil
import sys

import pytest

from tests.services import unavailable


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    if shutil.which("java") is None:
        unavailable("java", "no java on PATH")
    sql = pytest.importorskip("pyspark.sql")
    session = (
        sql.SparkSession.builder.master("local[1]")
        .appName("conquiet-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.pyspark.python", sys.executable)
        .getOrCreate()
    )
    yield session
    session.stop()


def test_a_python_function_runs_on_spark(spark):
    doubled = spark.sparkContext.parallelize(range(10), 1).map(lambda number: 2 * number).sum()

    assert doubled == 90
