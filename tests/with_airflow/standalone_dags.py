"""DAGs of the standalone tests: watchers, a task that is killed in a message, conquiet tasks."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import Any

from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, Asset, AssetWatcher, task
from airflow.utils.session import create_session
from sqlalchemy import insert, select

from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.operators.drain import DrainOperator
from airflow_provider_conquiet.operators.take import TakeOperator, messages_of
from airflow_provider_conquiet.operators.task import TaskOperator
from airflow_provider_conquiet.sensors.ack_by_run import AckByRunSensor
from airflow_provider_conquiet.triggers.backlog import BacklogTrigger
from airflow_provider_conquiet.triggers.message import MessageTrigger
from conquiet import DbSession, QueueMessage
from tests.conftest import effects

WATCHERS = {
    "told_of_killed": MessageTrigger(stream="killed", group="told_of_killed"),
    "told_of_burst": MessageTrigger(stream="burst", group="told_of_burst"),
    "told_of_burst_too": MessageQueueTrigger(scheme="redis+stream", stream="burst", fields=["order_id"]),
}

for name, trigger in WATCHERS.items():
    asset = Asset(name, watchers=[AssetWatcher(name=f"{name}_watcher", trigger=trigger)])
    # Not paused: Airflow runs no watcher whose DAGs are all paused.
    with DAG(name, schedule=[asset], max_active_runs=1) as watching:
        EmptyOperator(task_id="nothing")
    globals()[name] = watching


def bill_and_die_once(msg: QueueMessage, session: DbSession) -> None:
    """Write the effect; the first delivery of the fatal message does not survive it."""
    session.execute(insert(effects), {"entry_id": msg.id, "note": str(msg.payload["order_id"])})
    if msg.payload.get("is_fatal") and msg.delivery_count == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def must_be_refused() -> None:
    """Ask for Airflow's own database, which a worker must not reach."""
    try:
        with create_session() as session:
            session.execute(select(1))
    except RuntimeError:
        return
    raise AssertionError("a task of this Airflow reaches the metadata database")


with DAG("dies_in_a_message", schedule=None) as dies_in_a_message:
    PythonOperator(task_id="metadata_database_is_refused", python_callable=must_be_refused)
    DrainOperator(
        task_id="drain",
        stream="fatal",
        group="billing",
        handler=bill_and_die_once,
        inbox=True,
        batch_size=10,
        retries=1,
        retry_delay=timedelta(seconds=1),
    )


with DAG("bills_by_task", schedule=None) as bills_by_task:

    @task.conquiet_task(task="shop.bill", task_queue="bills")
    def bill(order_id: int) -> dict[str, int]:
        return {"order_id": order_id}

    def must_be_billed(billed: dict[str, int]) -> None:
        """What a task behind it is given."""
        assert billed == {"order_id": 7, "attempt": 1}, billed

    PythonOperator(task_id="check", python_callable=must_be_billed, op_args=[bill(7)])
    TaskOperator(task_id="refuse", task="shop.refuse", task_queue="bills", options={"max_retries": 0})


bell = BacklogTrigger(stream="parcels", group="shipping", ring_again_s=3, min_idle_s=30)
parcels = Asset("parcels_waiting", watchers=[AssetWatcher(name="parcels_bell", trigger=bell)])

with DAG("ships_parcels", schedule=[parcels], max_active_runs=2, catchup=False) as ships_parcels:
    taken = TakeOperator(task_id="take", stream="parcels", group="shipping", max_messages=20)
    AckByRunSensor(task_id="ack", taken=taken.output, poke_interval=1)

    @task
    def ship(taken: dict[str, Any]) -> None:
        """Write the effects; a run in which something comes for the first time that is fatal fails."""
        with RedisStreamsHook() as hook, hook.engine() as engine:
            messages = messages_of(taken)
            if any(msg.payload.get("is_fatal") and msg.delivery_count == 1 for msg in messages):
                raise ValueError("no truck")
            with engine.begin() as connection:
                rows = [{"entry_id": msg.id, "note": "shipped"} for msg in messages]
                connection.execute(insert(effects), rows)

    ship(taken.output)  # type: ignore[arg-type]
