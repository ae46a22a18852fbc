"""Enqueue orders by hand, to have something to drain: what the function yields becomes messages."""

from airflow.sdk import Param, dag, task


@dag(schedule=None, params={"count": Param(100, type="integer", minimum=1)}, tags=["shop"])
def enqueue_orders():
    # A retry enqueues no order twice: it knows them by their content.
    @task.enqueue(stream="orders", retries=2)
    def find_orders(params, run_id):
        for number in range(params["count"]):
            yield {"order_id": f"{run_id}/{number}", "cents": 100 + number}

    find_orders()


enqueue_orders()
