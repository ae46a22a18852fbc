"""Have orders billed by workers of conquiet tasks; Airflow waits for them without a worker slot.

Needs the connection `redis_streams_default`, and a worker: `conquiet worker shop:app` with this shop.py:

    from conquiet.tasks import TaskApp

    app = TaskApp("redis://localhost")

    @app.task(name="shop.bill")
    def bill(order_id: str, cents: int) -> dict:
        return {"order_id": order_id, "cents": cents}

    @app.task(name="shop.close_day")
    def close_day(cents: int) -> str:
        return f"{cents} cents billed"

Change the tasks' names and the body of `order`.
"""

from airflow.sdk import dag, task

from airflow_provider_conquiet.operators.task import TaskOperator


@dag(schedule=None, catchup=False, tags=["conquiet"])
def bill_by_task():
    # The function returns the arguments of the task. A retry waits for the task that an earlier try has
    # enqueued; only after one that failed it enqueues another. `max_retries` are those of conquiet itself.
    @task.conquiet_task(task="shop.bill", options={"max_retries": 5}, retries=2)
    def bill(number, run_id):
        return {"order_id": f"{run_id}/{number}", "cents": 100 + number}

    @task
    def total(bills):
        return {"cents": sum(bill["cents"] for bill in bills)}

    TaskOperator(
        task_id="close_day",
        task="shop.close_day",
        args=total(bill.expand(number=[1, 2, 3])),
        options={"priority": 9},
        retries=2,
    )


bill_by_task()
