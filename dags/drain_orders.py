"""Drain orders every minute: the decorated function handles one message in one transaction.

Needs the connection `redis_streams_default` that names a database, and in that database a table
`bills (order_id, cents)`. Change the stream, the group and the body of `bill`.
"""

from airflow.sdk import dag, task
from sqlalchemy import text


# One run at a time keeps the order of the stream.
@dag(schedule="* * * * *", max_active_runs=1, catchup=False, tags=["conquiet"])
def drain_orders():
    # `inbox`: an order that is delivered twice is billed once. `max_duration_s`: end before the next run.
    # `retries` are for a lost server or database, and begin with what the failed try left; an order that
    # fails stays pending until the DAG `claim_stale_orders` claims it.
    @task.drain(
        stream="orders", group="billing", max_messages=5_000, max_duration_s=50, inbox=True, retries=2
    )
    def bill(msg, session):
        session.execute(text("INSERT INTO bills (order_id, cents) VALUES (:order_id, :cents)"), msg.payload)

    @task
    def print_counts(report):
        # Counts and ids, never payloads: this is stored in Airflow's database.
        print(f"{report['handled']} billed, {report['failed']} failed, {report['remaining_lag']} are waiting")

    print_counts(bill())


drain_orders()
