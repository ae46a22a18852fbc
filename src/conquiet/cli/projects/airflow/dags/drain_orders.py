"""Drain orders every minute, and every five minutes what failed or a dead worker left."""

from __future__ import annotations

from airflow.sdk import dag, task
from billing import bill

from airflow_provider_conquiet.operators.claim_stale import ClaimStaleOperator


# One run at a time keeps the order of the stream.
@dag(schedule="* * * * *", max_active_runs=1, catchup=False, tags=["shop"])
def drain_orders():
    # `inbox`: an order that is delivered twice is billed once. `max_duration_s`: end before the next run.
    @task.drain(stream="orders", group="billing", max_duration_s=50, idle_ms=500, inbox=True, retries=2)
    def bill_orders(msg, session):
        bill(msg, session)

    bill_orders()


# Messages that failed are redelivered only by a claim.
@dag(schedule="*/5 * * * *", max_active_runs=1, catchup=False, tags=["shop"])
def recover_orders():
    ClaimStaleOperator(
        task_id="claim_stale",
        stream="orders",
        group="billing",
        handler="billing:bill",
        # Longer than the longest handler takes.
        min_idle_ms=60_000,
        # Delivered more often, an order is a dead letter: `conquiet dlq list orders`.
        max_deliveries=5,
        inbox=True,
        retries=2,
    )


drain_orders_dag = drain_orders()
recover_orders_dag = recover_orders()
