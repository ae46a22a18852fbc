"""Enqueue orders: what a function yields becomes messages of the stream `orders`.

Needs the connection `redis_streams_default`. Change the stream, the group and the body of `find_orders`.
"""

from airflow.sdk import Asset, Param, dag, task

# Other DAGs may wait for it; its event has the number of enqueued messages and the last one's id.
orders = Asset("redis+stream://localhost/orders")


@dag(schedule=None, params={"count": Param(100, type="integer", minimum=1)}, tags=["conquiet"])
def enqueue_orders():
    # A retry does not enqueue an order twice: messages are known by this task instance and their index in
    # the list. So `find_orders` must give them in the same order when it is called again.
    @task.enqueue(stream="orders", outlets=[orders], retries=2)
    def find_orders(params, run_id):
        for number in range(params["count"]):
            yield {"order_id": f"{run_id}/{number}", "cents": 100 + number}

    find_orders()


enqueue_orders()
