"""The definitions, run by Dagster on a private server."""

from shop.billing import bills, tables
from shop.definitions import defs
from sqlalchemy import func, select

from conquiet import EmbeddedServer, QueueConfig, RedisStreamsQueue
from conquiet.testing import move_clock
from dagster_conquiet.testing import run_job

ORDERS = [{"order_id": f"o-{number}", "cents": 100} for number in range(10)]


def billed(engine):
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(bills))


def test_orders_are_drained_and_what_a_dead_worker_left_is_recovered(conquiet_database):
    tables.create_all(conquiet_database)
    with EmbeddedServer() as server:
        config = QueueConfig("orders", "billing", "worker-1")
        with RedisStreamsQueue.from_url(server.url, config) as worker:
            worker.enqueue_many(ORDERS)
            worker.read(50, count=4)  # and dies

            drained = run_job(defs, "bill_orders", server.url, conquiet_database)
            assert (drained.counts["handled"], billed(conquiet_database)) == (6, 6)

            move_clock(worker, minutes=10)
            recovered = run_job(defs, "recover_orders", server.url, conquiet_database)
            assert (recovered.counts["handled"], billed(conquiet_database)) == (4, 10)
