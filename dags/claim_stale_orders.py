"""Every five minutes, handle the orders that a dead worker or a failing handler left pending.

Run this beside every DAG that drains a stream: what a killed worker has read comes again in no other way.
"""

from airflow.sdk import dag

from airflow_provider_conquiet.operators.claim_stale import ClaimStaleOperator


@dag(schedule="*/5 * * * *", max_active_runs=1, catchup=False, tags=["conquiet"])
def claim_stale_orders():
    ClaimStaleOperator(
        task_id="claim_stale",
        stream="orders",
        group="billing",
        handler="billing:bill",
        # Longer than the slowest handler takes, or it claims orders that are being handled.
        min_idle_ms=10 * 60 * 1000,
        # After so many deliveries an order goes to the stream `{orders}:quarantine`, with the reason.
        max_deliveries=5,
        inbox=True,
        retries=2,
    )


claim_stale_orders()
