"""A stream of orders becomes totals for each customer, as messages of the topic `totals`, while it grows."""

from __future__ import annotations

import argparse
import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conquiet.mq import Topics
from conquiet.queue import open_client
from conquiet.spark import publish, unpack

SCHEMA = "order_id STRING, customer STRING, cents BIGINT"


def totals_of(orders: DataFrame) -> DataFrame:
    """One row for each customer."""
    return orders.groupBy("customer").agg(F.sum("cents").alias("cents"), F.count("*").alias("orders"))


def open_spark() -> SparkSession:
    """Spark on this machine; its workers run the same Python."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("totals")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }
    spark = builder.config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def run(spark: SparkSession, url: str, checkpoint: str, **trigger: object) -> None:
    """Read the stream to its end and publish what was ordered since the last batch, again and again."""
    source = spark.readStream.format("redis-stream").options(
        url=url, stream="orders", start="earliest", commitGroup="totals"
    )

    def publish_totals(batch: DataFrame, number: int) -> None:
        totals = totals_of(unpack(batch, SCHEMA))
        # The name of the batch: one that is run again adds what is missing, and nothing twice.
        options = {"dedupeId": f"totals-{number}"}
        publish(totals, url=url, topic="totals", key="customer", options=options)

    query = source.load().writeStream.foreachBatch(publish_totals)
    query.option("checkpointLocation", checkpoint).trigger(**trigger).start().awaitTermination()


def create(url: str) -> None:
    """Make the topic, unless it is there."""
    with open_client(url) as client:
        if "totals" not in Topics(client).names():
            Topics(client).create("totals", partitions=2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--create", action="store_true", help="make the topic, and end")
    parser.add_argument("--checkpoint", default="checkpoint")
    options = parser.parse_args()
    server = os.environ["CONQUIET_REDIS_URL"]
    if options.create:
        create(server)
    else:
        run(open_spark(), server, options.checkpoint, processingTime="5 seconds")
