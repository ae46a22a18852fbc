"""Orders through Spark: enqueued, drained, summed up by customer and hour, published, kept, checked.

    shop-orders ─► orders (table) ─► Spark ─► order-totals (topic) ─► reported_totals ─► sums equal?

Every step may be run again: a second run of it adds, sums and keeps nothing twice. Spark needs Java 17.
"""

# No `from __future__ import annotations` here: Dagster reads the types of the functions.

from datetime import datetime, timedelta
from typing import Any

import dagster as dg

from conquiet import DrainLimits, Inbox, StreamWriter
from conquiet.mq import Topics, drain_partition
from dagster_conquiet import (
    DatabaseResource,
    DrainConfig,
    DrainSpec,
    RedisStreamsResource,
    SparkJobSpec,
    build_drain_asset,
    build_spark_asset,
)
from dagster_defs.order_ledger import keep_total, sums

PARTITIONS = 2


class Intake(dg.Config):
    """How many orders come in, and when the first one."""

    orders: int = 100
    first_at: str = "2026-01-01T00:00:00"


@dg.asset(kinds={"redis"}, group_name="order_pipeline")
def shop_orders(
    context: dg.AssetExecutionContext, config: Intake, redis_streams: RedisStreamsResource
) -> dg.MaterializeResult[Any]:
    """The shop's customers; a retry of this run enqueues none of their orders twice."""
    run = context.run.root_run_id or context.run.run_id
    payloads = [
        {
            "order_id": f"{run}/{number}",
            "customer": f"customer-{number % 7}",
            "cents": 100 + number,
            "ordered_at": (datetime.fromisoformat(config.first_at) + timedelta(minutes=number)).isoformat(),
        }
        for number in range(config.orders)
    ]
    with redis_streams.connect() as client:
        Topics(client).create("order-totals", partitions=PARTITIONS)
        ids = StreamWriter(client, "shop-orders").enqueue_once(payloads, dedupe_id=f"shop:{run}")
    return dg.MaterializeResult(metadata={"enqueued": len(ids)})


orders = build_drain_asset(
    DrainSpec(
        stream="shop-orders",
        group="ledger",
        handler="dagster_defs.order_ledger:keep_order",
        config=DrainConfig(max_messages=100_000),
    ),
    key="orders",
    deps=[shop_orders],
    group_name="order_pipeline",
    retry_policy=dg.RetryPolicy(max_retries=3, delay=5),
)

# Totals, not differences: to read one twice, or only the last one, gives the same result.
published_totals = build_spark_asset(
    SparkJobSpec(
        job="aggregate",
        options={
            "table": "orders",
            "in": "database",
            "time": "ordered_at",
            "by": "customer",
            "window": "1 hour",
            "sum": "cents",
            "key": "customer",
        },
        to_topic="order-totals",
        submit=("spark-submit", "--master", "local[2]"),
    ),
    key="published_totals",
    deps=[orders],
    group_name="order_pipeline",
    retry_policy=dg.RetryPolicy(max_retries=2, delay=5),
)


@dg.asset(
    deps=[published_totals],
    kinds={"redis"},
    group_name="order_pipeline",
    retry_policy=dg.RetryPolicy(max_retries=3, delay=5),
)
def order_totals(
    redis_streams: RedisStreamsResource, database: DatabaseResource
) -> dg.MaterializeResult[Any]:
    """What each customer ordered in each hour, drained from every partition of the topic."""
    handled = 0
    with redis_streams.connect() as client:
        topic = Topics(client).open("order-totals")
        for partition in topic.partitions:
            report = drain_partition(
                topic,
                partition,
                "reports",
                keep_total,
                database.get_engine(),
                DrainLimits(max_messages=100_000, idle_ms=200),
                inbox=Inbox(),
            )
            handled += report.handled
    return dg.MaterializeResult(metadata={"handled": handled})


@dg.asset_check(asset=order_totals, blocking=True)
def sums_are_equal(database: DatabaseResource) -> dg.AssetCheckResult:
    """Fails the run if an order is missing in the totals, or is in them twice."""
    with database.get_engine().connect() as connection:
        of_orders, of_totals = sums(connection)
    return dg.AssetCheckResult(
        passed=of_orders == of_totals,
        metadata={"orders": str(of_orders), "totals": str(of_totals)},
    )


pipeline = dg.define_asset_job(
    "order_pipeline",
    dg.AssetSelection.groups("order_pipeline"),
    # One step after the other anyway; SQLite has one writer.
    executor_def=dg.in_process_executor,
)
