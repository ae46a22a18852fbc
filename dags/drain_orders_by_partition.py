"""Drain a topic in parallel: one mapped task for each partition, each with its partition's lease.

Needs the connection `redis_streams_default` that names a database, in that database a table
`bills (order_id, cents)`, and a topic; once, with `conquiet.mq`:

    Topics(RedisStreamsHook().get_conn()).create("orders", partitions=4)
"""

from airflow.sdk import dag, task

from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.operators.drain import DrainOperator


# Runs may overlap: a partition that another run drains is skipped, so orders of one key keep their order.
@dag(schedule="* * * * *", catchup=False, tags=["conquiet"])
def drain_orders_by_partition():
    @task
    def find_partitions():
        return RedisStreamsHook().partitions("orders")

    # An order that fails is retried by the topic's own rules, and ends in its dead letters.
    DrainOperator.partial(
        task_id="drain",
        topic="orders",
        group="billing",
        handler="billing:bill",
        max_duration_s=50,
        inbox=True,
        retries=2,
    ).expand(partition=find_partitions())


drain_orders_by_partition()
