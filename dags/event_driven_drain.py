"""Drain orders whenever there are some: a doorbell rings in the triggerer, and a run drains the stream.

Needs the connection `redis_streams_default` that names a database, and in that database a table
`bills (order_id, cents)`. Change the stream, the group and the body of `bill`.
"""

from airflow.sdk import Asset, AssetWatcher, dag, task
from sqlalchemy import text

from airflow_provider_conquiet.triggers.backlog import BacklogTrigger

# The doorbell only reads the backlog: a ring that is missed or merged with another loses nothing.
# It rings again while there is a backlog, because one run may not be enough, and Airflow may join two rings.
doorbell = BacklogTrigger(stream="orders", group="billing", ring_again_s=5)
orders_waiting = Asset("orders_waiting", watchers=[AssetWatcher(name="orders_doorbell", trigger=doorbell)])


# One run at a time keeps the order of the stream; the next ring starts the next run.
@dag(schedule=[orders_waiting], max_active_runs=1, catchup=False, tags=["conquiet"])
def event_driven_drain():
    # `inbox`: an order that is delivered twice is billed once. `retries` are for a lost server or database;
    # an order that fails stays pending and is delivered again.
    @task.drain(stream="orders", group="billing", max_messages=1_000, inbox=True, retries=2)
    def bill(msg, session):
        session.execute(text("INSERT INTO bills (order_id, cents) VALUES (:order_id, :cents)"), msg.payload)

    bill()


event_driven_drain()
