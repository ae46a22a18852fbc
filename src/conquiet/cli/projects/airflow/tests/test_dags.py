"""The DAGs, run by Airflow on a private server."""

from billing import bills, tables
from drain_orders import drain_orders_dag, recover_orders_dag
from sqlalchemy import func, select

from conquiet.testing import move_clock

ORDERS = [{"order_id": f"o-{number}", "cents": 100} for number in range(10)]


def billed(bed):
    with bed.engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(bills))


def test_orders_are_drained(dag_test_bed):
    tables.create_all(dag_test_bed.engine)
    dag_test_bed.enqueue("orders", ORDERS)

    run = dag_test_bed.run(drain_orders_dag)

    assert run.state == "success"
    assert dag_test_bed.returned(run, "bill_orders")["handled"] == 10
    assert billed(dag_test_bed) == 10


def test_what_a_dead_worker_left_is_recovered(dag_test_bed):
    tables.create_all(dag_test_bed.engine)
    dag_test_bed.enqueue("orders", ORDERS)
    with dag_test_bed.queue("orders", "billing") as worker:
        worker.read(50, count=4)  # and dies
        move_clock(worker, minutes=10)

    run = dag_test_bed.run(recover_orders_dag)

    assert run.state == "success"
    assert billed(dag_test_bed) == 4
