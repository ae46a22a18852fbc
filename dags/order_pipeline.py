"""Orders through Spark: drained into a database, summed up by customer and hour, published, kept, checked.

    shop-orders ─► orders (table) ─► Spark ─► order-totals (topic) ─► order_totals (table) ─► sums equal?

Needs the connection `redis_streams_default` that names a database that Spark's executors reach too,
`spark_default` (`local[2]`, `spark://…`, `yarn`, `k8s://…`), and `spark-submit` on the workers' PATH.
Every step may be run again: a second run adds, sums and keeps nothing twice.
"""

from datetime import datetime, timedelta

from airflow.sdk import Asset, Param, dag, task
from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Integer,
    MetaData,
    String,
    Table,
    func,
    insert,
    select,
    update,
)

from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.operators.spark import SparkPublishOperator
from conquiet.mq import Topics

PARTITIONS = 2

tables = MetaData()
orders = Table(
    "orders",
    tables,
    Column("order_id", String(200), primary_key=True),
    Column("customer", String(50), nullable=False),
    Column("cents", BigInteger, nullable=False),
    Column("ordered_at", DateTime, nullable=False),
)
order_totals = Table(
    "order_totals",
    tables,
    Column("customer", String(50), primary_key=True),
    Column("window_start", DateTime, primary_key=True),
    Column("orders", Integer, nullable=False),
    Column("cents", BigInteger, nullable=False),
)


def keep_order(msg, session):
    """One order, one transaction."""
    order = msg.payload
    session.execute(insert(orders), order | {"ordered_at": datetime.fromisoformat(order["ordered_at"])})


def keep_total(msg, session):
    """The total of one customer and hour; one that counts fewer orders is older, and late."""
    window_start = datetime.fromisoformat(msg.payload["window_start"])
    is_same = (order_totals.c.customer == msg.payload["customer"]) & (
        order_totals.c.window_start == window_start
    )
    total = {"orders": msg.payload["count"], "cents": msg.payload["sum_cents"]}
    known = session.execute(select(order_totals.c.orders).where(is_same)).scalar()
    if known is None:
        key = {"customer": msg.payload["customer"], "window_start": window_start}
        session.execute(insert(order_totals), key | total)
    elif known <= total["orders"]:
        session.execute(update(order_totals).where(is_same).values(total))


# One run at a time: an order that comes between the sums and the check would be missing in the sums.
@dag(
    schedule=None,
    max_active_runs=1,
    params={"count": Param(100, type="integer", minimum=1)},
    tags=["conquiet"],
)
def order_pipeline():
    @task(retries=2)
    def make_places():
        with RedisStreamsHook() as hook, hook.engine() as engine:
            tables.create_all(engine)
            Topics(hook.get_conn()).create("order-totals", partitions=PARTITIONS)

    @task.enqueue(stream="shop-orders", retries=2)
    def take_orders(params, run_id, dag_run):
        for number in range(params["count"]):
            ordered_at = dag_run.run_after.replace(tzinfo=None) + timedelta(minutes=number)
            yield {
                "order_id": f"{run_id}/{number}",
                "customer": f"customer-{number % 7}",
                "cents": 100 + number,
                "ordered_at": ordered_at.isoformat(),
            }

    of_orders = {"stream": "shop-orders", "group": "ledger", "max_messages": 100_000}
    kept = task.drain(task_id="keep_orders", inbox=True, retries=2, **of_orders)(keep_order)()

    # Totals, not differences: a consumer that reads one twice, or only the last one, has the right sum.
    published = SparkPublishOperator(
        task_id="publish_totals",
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
        outlets=[Asset("redis+stream://localhost/order-totals")],
        retries=2,
    )

    totals_kept = [
        task.drain(
            task_id=f"keep_totals_{partition}",
            topic="order-totals",
            partition=partition,
            group="ledger",
            max_messages=100_000,
            inbox=True,
            retries=2,
        )(keep_total)()
        for partition in range(PARTITIONS)
    ]

    @task
    def check_sums():
        with RedisStreamsHook() as hook, hook.engine() as engine, engine.connect() as connection:
            of_orders = connection.execute(select(func.count(), func.sum(orders.c.cents))).one()
            of_totals = connection.execute(
                select(func.sum(order_totals.c.orders), func.sum(order_totals.c.cents))
            ).one()
        if tuple(of_orders) != tuple(of_totals):
            raise ValueError(f"orders and cents are {tuple(of_orders)}, in the totals {tuple(of_totals)}")
        print(f"{of_orders[0]} orders, {of_orders[1]} cents, and the totals say the same")

    make_places() >> take_orders() >> kept >> published >> totals_kept >> check_sums()


order_pipeline()
