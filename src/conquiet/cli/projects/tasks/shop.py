"""The tasks of a shop; `python shop.py` enqueues one and waits for its result."""

from __future__ import annotations

from sqlalchemy import insert
from tables import bills, engine

from conquiet import DbSession
from conquiet.tasks import RetryPolicy, TaskApp

app = TaskApp(database=engine)


@app.task(max_retries=3, retry=RetryPolicy(base_delay_ms=1_000))
def bill(order_id: str, cents: int, session: DbSession) -> int:
    """What it writes, its result and its ack are one transaction: an order is billed once."""
    if cents < 0:
        raise ValueError(f"order {order_id} costs less than nothing")
    session.execute(insert(bills), {"order_id": order_id, "cents": cents})
    return cents


@app.task
def greet(name: str) -> str:
    """A task without a database."""
    return f"Hello {name}"


if __name__ == "__main__":
    print(greet.enqueue(name="Ann").result(timeout_s=60))
    print(bill.enqueue("o-1", 500).result(timeout_s=60))
