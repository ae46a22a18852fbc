"""A backlog of orders starts a run; each run drains the stream into the table `bills`."""

import dagster as dg

import dagster_conquiet as dc
from shop.billing import bill

# Delivered more than five times, an order is a dead letter: `conquiet dlq list orders`.
config = dc.DrainConfig(max_deliveries=5)
orders = dc.DrainSpec(stream="orders", group="billing", handler=bill, config=config)
bills = dc.build_drain_asset(orders, key="bills")
bill_orders = dg.define_asset_job("bill_orders", [bills])

# Messages that failed, or that a dead step left, are redelivered only by a claim.
recover_orders = dc.build_claim_stale_job(orders, name="recover_orders")

running = dg.DefaultSensorStatus.RUNNING
defs = dg.Definitions(
    assets=[dc.build_stream_asset("orders", group="billing"), bills],
    jobs=[bill_orders, recover_orders],
    sensors=[
        dc.build_backlog_sensor(orders, bill_orders, minimum_interval_seconds=5, default_status=running)
    ],
    schedules=[
        dc.build_claim_stale_schedule(recover_orders, default_status=dg.DefaultScheduleStatus.RUNNING)
    ],
    resources={
        "redis_streams": dc.RedisStreamsResource(url=dg.EnvVar("CONQUIET_REDIS_URL")),
        "database": dc.DatabaseResource(url=dg.EnvVar("CONQUIET_DATABASE_URL")),
    },
)
