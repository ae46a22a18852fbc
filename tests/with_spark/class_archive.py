"""Spark's classes in an archive that Java maps into memory, so that its processes start sooner.

Run as `python -m tests.with_spark.class_archive FILE`; Java goes on without one that does not fit.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

#: Where `make` puts it.
ARCHIVE = Path(sys.prefix) / "spark.jsa"

#: Java processes of tests live for seconds: what the optimising compiler spends is never earned back.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def java_options() -> str:
    """For `JDK_JAVA_OPTIONS`."""
    return f"{QUICK} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable" if ARCHIVE.exists() else QUICK


def main(file: Path) -> None:
    """Load what the tests load, and have Java write it down at its end."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        return
    file.unlink(missing_ok=True)
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "JDK_JAVA_OPTIONS": QUICK}
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        spark = _session(file)
        java = spark.sparkContext._gateway.proc
        _load_classes(spark)
        spark.stop()
        # Java ends with its input.
        java.stdin.close()
        java.wait()


def _session(file: Path) -> Any:
    """A driver that is its own executor."""
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[1]")
        .config("spark.driver.extraJavaOptions", f"-XX:ArchiveClassesAtExit={file} -Xlog:disable")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "OFF")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )


def _load_classes(spark: Any) -> None:
    from conquiet import EmbeddedServer

    for name in ("deploy.master.Master", "deploy.worker.Worker", "executor.CoarseGrainedExecutorBackend"):
        spark._jvm.java.lang.Class.forName(f"org.apache.spark.{name}")
    numbers = spark.range(10).selectExpr("id % 3 AS key", "id AS number", "current_timestamp() AS at")
    numbers.write.parquet("numbers")
    numbers.groupBy("key").sum("number").collect()
    with EmbeddedServer() as server:
        options = {"url": server.url, "stream": "numbers"}
        rows = numbers.selectExpr("to_json(struct(*)) AS data")
        rows.write.format("redis-stream").mode("append").options(**options).save()
        spark.read.format("redis-stream").options(**options).load().count()
        query = spark.readStream.format("redis-stream").options(**options).load().writeStream
        query.foreachBatch(lambda rows, _: rows.count()).trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
