"""A Spark application of its own: two executors, one of which is killed in the middle of a write.

Run as `python -m tests.with_spark.executors URL TOPIC ROWS`; prints how many entries there were at the kill.
"""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import redis
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from conquiet.mq import Topics
from conquiet.spark import publish
from tests.eventually import eventually


def main(url: str, topic_name: str, rows: int) -> None:
    """Publish, kill, wait for the end."""
    client = redis.Redis.from_url(url)
    topic = Topics(client).open(topic_name)

    def added() -> int:
        return sum(client.xlen(topic.keys.stream(partition)) for partition in topic.partitions)

    spark = _session()
    df = spark.range(0, rows, 1, 4).select(F.col("id").alias("number"), F.lit("x" * 150).alias("pad"))
    with ThreadPoolExecutor() as pool:
        written = pool.submit(publish, df, url=url, topic=topic_name, key="number")
        eventually(lambda: added() > 5_000 or written.done(), every_s=0.001)
        os.kill(_executors()[0], signal.SIGKILL)
        print("added at the kill:", added(), flush=True)
        written.result()
    spark.stop()


def _session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session: SparkSession = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executor.memory", "512m")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session


def _executors() -> list[int]:
    """The executor processes of this application: they are in this process' own group."""
    group = os.getpgid(0)
    found = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        pid = int(command.parent.name)
        try:
            if "CoarseGrainedExecutorBackend" in command.read_text() and os.getpgid(pid) == group:
                found.append(pid)
        except OSError:
            continue
    return sorted(found)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
