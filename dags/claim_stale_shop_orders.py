"""Every five minutes, handle the orders of the DAG `order_pipeline` that a killed worker left pending.

Needs the connection `redis_streams_default` of that DAG, and its file beside this one.
"""

from airflow.sdk import Param, dag

from airflow_provider_conquiet.operators.claim_stale import ClaimStaleOperator


@dag(
    schedule="*/5 * * * *",
    max_active_runs=1,
    catchup=False,
    # Longer than the longest handler takes, or it claims orders that are being handled.
    params={"min_idle_ms": Param(10 * 60 * 1000, type="integer", minimum=0)},
    tags=["conquiet"],
)
def claim_stale_shop_orders():
    ClaimStaleOperator(
        task_id="claim_stale",
        stream="shop-orders",
        group="ledger",
        # The same function and the same inbox as in the drain: what that one committed is only acked here.
        handler="order_pipeline:keep_order",
        inbox=True,
        min_idle_ms="{{ params.min_idle_ms }}",
        max_messages=100_000,
        max_deliveries=5,
        retries=2,
    )


claim_stale_shop_orders()
