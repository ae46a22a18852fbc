"""Every DAG of dags/ runs on a real server, and reading it touches nothing."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from conquiet import DrainLimits, EmbeddedServer
from conquiet.mq import ConsumerConfig, DeadLetters, Message, Producer, RetryPolicy, Topics, drain_partition
from conquiet.tasks import TaskApp, Worker, WorkerConfig
from tests.eventually import HANG_S
from tests.with_airflow.conftest import asset_events, xcom

FOLDER = Path(__file__).parents[2] / "dags"
DAGS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "billing")


@pytest.fixture
def hook(
    airflow_connection: dict, monkeypatch: pytest.MonkeyPatch, engine: Engine
) -> Iterator[RedisStreamsHook]:
    """A server of the test's own, since the DAGs name their streams, and the application's table."""
    monkeypatch.syspath_prepend(str(FOLDER))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE bills (order_id TEXT, cents INTEGER)"))
    with EmbeddedServer() as server:
        fields = airflow_connection | {"port": server.port}
        monkeypatch.setenv("AIRFLOW_CONN_REDIS_STREAMS_DEFAULT", json.dumps(fields))
        with RedisStreamsHook() as opened:
            yield opened


@pytest.fixture
def run_example(run_dag, hook: RedisStreamsHook) -> Callable:
    """Runs a DAG of the folder, as Airflow reads it."""
    from airflow.dag_processing.dagbag import DagBag

    def run(name: str, **arguments):
        bag = DagBag(dag_folder=str(FOLDER / f"{name}.py"))
        assert bag.import_errors == {}
        finished = run_dag(bag.dags[name], **arguments)
        assert finished.state == "success"
        return finished

    return run


@pytest.fixture
def bills(engine: Engine) -> Callable[[], int]:
    """How many orders are billed."""

    def count() -> int:
        with engine.connect() as connection:
            return int(connection.scalar(text("SELECT count(*) FROM bills")))

    return count


def order(number: int) -> dict:
    return {"order_id": f"o-{number}", "cents": number}


@pytest.fixture
def topic(hook: RedisStreamsHook):
    """The topic `orders` with 40 messages in four partitions."""
    created = Topics(hook.get_conn()).create("orders", partitions=4)
    messages = [Message(payload=order(number), partition=number % 4) for number in range(40)]
    Producer(hook.get_conn()).send_many("orders", messages)
    return created


def test_enqueue_orders_puts_its_orders_into_the_stream(run_example, hook):
    run = run_example("enqueue_orders", run_conf={"count": 12})

    assert hook.backlog("orders", "billing").lag == 12
    assert asset_events(run)["redis+stream://localhost:6379/orders"]["enqueued"] == 12


@pytest.mark.parametrize("name", ["drain_orders", "event_driven_drain"])
def test_orders_are_billed_once_each(run_example, hook, bills, name):
    run_example("enqueue_orders")

    run = run_example(name)

    backlog = hook.backlog("orders", "billing")
    assert (bills(), backlog.lag, backlog.pending) == (100, 0, 0)
    assert xcom(run, "bill")["handled"] == 100


def test_every_partition_is_drained_by_its_own_task(run_example, topic, bills):
    run = run_example("drain_orders_by_partition")

    assert bills() == 40
    assert [xcom(run, "drain", partition)["handled"] for partition in range(4)] == [10, 10, 10, 10]


def test_stale_orders_are_claimed_and_fresh_ones_left(run_example, hook, bills):
    ids = hook.enqueue("orders", map(order, range(5)))
    hook.queue("orders", "billing", "dead").read(1, count=5)
    # As if they had been read eleven minutes ago; all but the last.
    hook.get_conn().xclaim("orders", "billing", "dead", 0, ids[:4], idle=660_000, justid=True)

    run_example("claim_stale_orders")

    assert (bills(), hook.backlog("orders", "billing").pending) == (4, 1)


def test_what_a_dead_worker_of_the_order_pipeline_left_is_claimed(run_example, hook, engine):
    order_pipeline = importlib.import_module("order_pipeline")
    order_pipeline.tables.create_all(engine)
    at = {"customer": "customer-1", "ordered_at": "2026-01-01T00:00:00"}
    hook.enqueue("shop-orders", [order(number) | at for number in range(5)])
    hook.queue("shop-orders", "ledger", "dead").read(1, count=5)

    run = run_example("claim_stale_shop_orders", run_conf={"min_idle_ms": 0})

    assert xcom(run, "claim_stale")["handled"] == 5
    assert hook.backlog("shop-orders", "ledger").pending == 0


def test_dead_letters_are_counted_first_and_replayed_then(run_example, topic, hook, bills):
    def refuse(msg):
        raise ValueError(msg.id)

    once = ConsumerConfig(retry=RetryPolicy(max_attempts=1))
    drain_partition(topic, 0, "billing", refuse, limits=DrainLimits(max_messages=10, idle_ms=20), config=once)

    counted = xcom(run_example("replay_dead_letters"), "replay")
    conf = {"is_dry_run": False, "limit": 7, "error_type": "ValueError", "per_second": 1_000}
    replayed = xcom(run_example("replay_dead_letters", run_conf=conf), "replay")

    assert (counted["replayed"], counted["is_dry_run"], counted["remaining"]) == (10, True, 10)
    assert (replayed["replayed"], replayed["is_dry_run"], replayed["remaining"]) == (7, False, 3)
    assert DeadLetters(topic).count() == 3


def test_orders_are_billed_by_workers_of_tasks(run_example, hook):
    app = TaskApp(hook.url)
    app.task(name="shop.bill")(lambda order_id, cents: {"order_id": order_id, "cents": cents})
    app.task(name="shop.close_day")(lambda cents: f"{cents} cents billed")

    with app, Worker(app, WorkerConfig(pool="thread", concurrency=2)):
        run = run_example("bill_by_task")

    assert xcom(run, "close_day") == "306 cents billed"


_READ_WITHOUT_TOUCHING = """
import sys
from airflow.dag_processing.dagbag import DagBag

touched = []
connects = ("socket.connect", "sqlite3.connect")
sys.addaudithook(lambda event, facts: touched.append(event) if event in connects else None)
bag = DagBag(dag_folder=sys.argv[1])
assert bag.import_errors == {}, bag.import_errors
assert not touched, touched
print(*sorted(bag.dags), sep="\\n")
"""


def test_reading_the_dags_opens_no_connection():
    command = [sys.executable, "-c", _READ_WITHOUT_TOUCHING, str(FOLDER)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-len(DAGS) :] == DAGS
