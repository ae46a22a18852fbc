"""Orders are enqueued, drained into the table `bills`, recovered every five minutes, replayed on demand.

Beside it, `order_pipeline` has Spark sum up orders by customer and hour, and `billed` is made by a worker of
conquiet tasks; `dagster_defs.tasks` says how it is started.

CONQUIET_REDIS_URL and CONQUIET_DATABASE_URL are the servers; without them the shop runs on a private Valkey
and a SQLite file in the directory `.dagster_conquiet`, created when first used.
"""

# No `from __future__ import annotations` here: Dagster reads the types of the functions.

import os
from typing import Any

import dagster as dg

from dagster_conquiet import (
    DrainConfig,
    DrainSpec,
    TaskSpec,
    build_backlog_check,
    build_backlog_sensor,
    build_claim_stale_job,
    build_claim_stale_schedule,
    build_dead_letter_check,
    build_drain_asset,
    build_enqueue_op,
    build_freshness_check,
    build_replay_dead_letters_job,
    build_stream_asset,
    build_task_asset,
)
from dagster_defs import order_pipeline
from dagster_defs.embedded import SQLITE_URL
from dagster_defs.resources import BillingDatabase, EmbeddedByDefault


class Shopping(dg.Config):
    """How many orders come in."""

    orders: int = 100


@dg.op
def new_orders(context: dg.OpExecutionContext, config: Shopping) -> list[dict[str, Any]]:
    """The shop's customers."""
    run_id = context.run.run_id
    return [{"order_id": f"{run_id}/{number}", "cents": 100 + number} for number in range(config.orders)]


orders = DrainSpec(
    stream="orders",
    group="billing",
    handler="dagster_defs.billing:bill",
    config=DrainConfig(max_messages=5_000, max_duration_s=240, max_deliveries=5),
)

enqueue_orders = build_enqueue_op(orders, name="enqueue_orders")


@dg.job
def take_orders() -> None:
    """Enqueue orders; a retry of this run enqueues none of them twice."""
    enqueue_orders(new_orders())


order_stream = build_stream_asset("orders", group="billing", description="Orders, as they came in.")
bills = build_drain_asset(
    orders,
    key="bills",
    description="One row per order, even if a step is killed.",
    retry_policy=dg.RetryPolicy(max_retries=3, delay=5, backoff=dg.Backoff.EXPONENTIAL),
)
# The step waits, a worker works; a retry waits for the task of the attempt before.
billed = build_task_asset(
    TaskSpec(task="shop.sum_bills"),
    key="billed",
    args={"at_least": 1},
    deps=[bills],
    description="How much was billed.",
    retry_policy=dg.RetryPolicy(max_retries=3, delay=5),
)
# Without the checks: right after a drain they would find nothing, so they have a schedule of their own.
bill_orders = dg.define_asset_job("bill_orders", dg.AssetSelection.assets(bills).without_checks())
sum_up_bills = dg.define_asset_job("sum_up_bills", dg.AssetSelection.assets(billed))
check_orders = dg.define_asset_job(
    "check_orders", dg.AssetSelection.checks_for_assets(bills), executor_def=dg.in_process_executor
)
recover_orders = build_claim_stale_job(orders, name="recover_orders")

defs = dg.Definitions(
    assets=[
        order_stream,
        bills,
        billed,
        order_pipeline.shop_orders,
        order_pipeline.orders,
        order_pipeline.published_totals,
        order_pipeline.order_totals,
    ],
    asset_checks=[
        build_backlog_check(orders, max_lag=10_000, asset=bills),
        build_freshness_check(orders, max_age_s=600, asset=bills),
        build_dead_letter_check(orders, asset=bills),
        order_pipeline.sums_are_equal,
    ],
    jobs=[
        take_orders,
        bill_orders,
        sum_up_bills,
        check_orders,
        recover_orders,
        build_replay_dead_letters_job(orders, name="replay_dead_orders"),
        order_pipeline.pipeline,
    ],
    sensors=[
        build_backlog_sensor(
            orders,
            bill_orders,
            minimum_interval_seconds=10,
            default_status=dg.DefaultSensorStatus.RUNNING,
        )
    ],
    schedules=[
        build_claim_stale_schedule(recover_orders, default_status=dg.DefaultScheduleStatus.RUNNING),
        dg.ScheduleDefinition(
            job=check_orders, cron_schedule="*/5 * * * *", default_status=dg.DefaultScheduleStatus.RUNNING
        ),
    ],
    resources={
        "redis_streams": EmbeddedByDefault(
            url=dg.EnvVar("CONQUIET_REDIS_URL") if os.environ.get("CONQUIET_REDIS_URL") else None
        ),
        "database": BillingDatabase(
            url=dg.EnvVar("CONQUIET_DATABASE_URL") if os.environ.get("CONQUIET_DATABASE_URL") else SQLITE_URL
        ),
    },
)
