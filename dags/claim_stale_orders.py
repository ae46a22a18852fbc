"""Every five minutes, handle the orders that a dead worker or a failing handler left pending.

Run this beside every DAG that drains a stream: messages that failed are redelivered only by a claim.
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
        # Longer than the longest handler takes, or it claims orders that are being handled.
        min_idle_ms=10 * 60 * 1000,
        # After so many deliveries an order becomes a dead letter; the DAG `replay_dead_letters` replays it.
        max_deliveries=5,
        inbox=True,
        retries=2,
    )


claim_stale_orders()
