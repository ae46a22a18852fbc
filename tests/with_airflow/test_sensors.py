"""The sensors: two that only look, and one that drains and counts, over reschedules, retries and kills."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from airflow.exceptions import AirflowFailException, AirflowRescheduleException
from airflow.providers.common.compat.sdk import TaskDeferred
from airflow.sdk import DAG, PokeReturnValue
from sqlalchemy import Engine, select, text

from airflow_provider_conquiet.message_search import MessageSearch
from airflow_provider_conquiet.sensors.backlog import BacklogSensor
from airflow_provider_conquiet.sensors.drain import DrainSensor
from airflow_provider_conquiet.sensors.message import MessageSensor
from airflow_provider_conquiet.triggers.match import MatchTrigger
from conquiet import RedisStreamsQueue
from conquiet.mq import Producer, Topics
from conquiet.queue.steps import run_steps
from tests.conftest import effects
from tests.eventually import HANG_S, eventually
from tests.with_airflow.conftest import RunDag, states, xcom

pytestmark = pytest.mark.usefixtures("airflow_connection")

RECORD = "tests.with_airflow.handlers:record"


class StateStore(dict):
    """The task's own state, as Airflow 3.3 keeps it over reschedules."""

    def set(self, key: str, value: Any) -> None:
        self[key] = json.loads(json.dumps(value))

    def delete(self, key: str) -> None:
        self.pop(key, None)


def value_of(found: PokeReturnValue) -> Any:
    return found.xcom_value


def context(try_number: int = 1, store: StateStore | None = None) -> Any:
    names = {"dag_id": "dag", "task_id": "sensor", "run_id": "run-1", "map_index": -1}
    ti = SimpleNamespace(**names, try_number=try_number, get_first_reschedule_date=lambda _context: None)
    return {"ti": ti} | ({} if store is None else {"task_state_store": store})


def test_the_backlog_sensor_waits_for_lag_and_returns_counts(orders: RedisStreamsQueue, stream: str):
    sensor = BacklogSensor(task_id="wait", stream=stream, group="billing", min_lag=3)
    orders.enqueue_many({"secret": "hidden"} for _ in range(2))
    before = sensor.poke(context())
    orders.enqueue({"secret": "hidden"})
    after = sensor.poke(context())

    assert (before.is_done, after.is_done) == (False, True)
    assert (value_of(after)["stream"], value_of(after)["lag"]) == (stream, 3)
    assert "hidden" not in json.dumps(after.xcom_value)


def test_the_backlog_sensor_counts_pending_or_age_where_it_is_asked_to(
    orders: RedisStreamsQueue, valkey: redis.Redis, stream: str
):
    valkey.xadd(stream, {"data": "{}"}, id="1700000000000-0")
    place: dict[str, Any] = {"stream": stream, "group": "billing"}
    old = BacklogSensor(task_id="old", **place, min_lag=None, min_age_s=3_600).poke(context())
    orders.read(1_000)
    unasked = BacklogSensor(task_id="lag", **place).poke(context())
    stuck = BacklogSensor(task_id="stuck", **place, min_lag=None, min_pending=1).poke(context())

    assert (old.is_done, unasked.is_done, stuck.is_done) == (True, False, True)


def test_the_backlog_sensor_makes_neither_stream_nor_group(valkey: redis.Redis, stream: str):
    found = BacklogSensor(task_id="wait", stream=stream, group="billing").poke(context())

    assert not found.is_done
    assert not valkey.exists(stream)


def test_the_backlog_sensor_adds_up_the_partitions_of_a_topic(valkey_url: str, stream: str):
    name = stream.replace(":", "-")
    with redis.Redis.from_url(valkey_url) as client:
        Topics(client).create(name, partitions=4)
        Producer(client).send_many(name, [{"n": n} for n in range(10)])
    sensor = BacklogSensor(task_id="wait", topic=name, group="billing", min_lag=10)

    found = sensor.poke(context())

    assert found.is_done
    assert (value_of(found)["topic"], value_of(found)["lag"]) == (name, 10)


def test_the_backlog_sensor_gives_its_slot_back_between_looks_when_rescheduled(stream: str):
    sensor = BacklogSensor(task_id="wait", stream=stream, group="billing", mode="reschedule")

    with pytest.raises(AirflowRescheduleException):
        sensor.execute(context())


def test_the_deferrable_backlog_sensor_looks_from_the_triggerer(
    run_dag: RunDag, orders: RedisStreamsQueue, stream: str
):
    with DAG("deferred_sensor", schedule=None) as dag:
        BacklogSensor(
            task_id="wait", stream=stream, group="billing", min_lag=2, deferrable=True, poke_interval=0.05
        )
    task: Any = dag.get_task("wait")
    with pytest.raises(TaskDeferred):
        task.execute(context())
    orders.enqueue_many({"n": n} for n in range(2))

    run = run_dag(dag)

    assert states(run) == {"wait": "success"}
    assert xcom(run, "wait")["lag"] == 2


def test_the_message_sensor_finds_the_first_match_and_consumes_nothing(
    orders: RedisStreamsQueue, valkey: redis.Redis, stream: str
):
    valkey.xadd(stream, {"data": "no json"})
    valkey.xadd(stream, {"other": "field"})
    ids = orders.enqueue_many({"state": state, "n": 1} for state in ("open", "ready", "ready"))

    found = MessageSensor(task_id="wait", stream=stream, equals={"state": "ready"}).poke(context())

    assert found.is_done
    assert found.xcom_value == {"stream": stream, "id": ids[1]}
    assert orders.backlog_stats().lag == 5
    assert orders.backlog_stats().pending == 0


def test_the_message_sensor_matches_by_a_function_that_is_named(orders: RedisStreamsQueue, stream: str):
    ids = orders.enqueue_many({"number": n} for n in range(1_200))

    found = MessageSensor(task_id="wait", stream=stream, match=f"{__name__}:is_large").poke(context())

    assert value_of(found)["id"] == ids[1_100]


def test_the_message_sensor_reads_large_messages_a_few_at_a_time(
    orders: RedisStreamsQueue, valkey_url: str, stream: str
):
    ids = orders.enqueue_many({"number": n, "text": "x" * (1 << 20)} for n in range(30))
    search = MessageSearch({stream: "0-0"}, equals={"number": 29})
    pages: list[int] = []

    def run_and_note(*command: Any, **options: Any) -> Any:
        page = client.execute_command(*command, **options)
        pages.append(len(page))
        return page

    with redis.Redis.from_url(valkey_url) as client:
        found = run_steps(run_and_note, search.steps())

    assert found == (stream, ids[29])
    assert max(pages) <= 10


looked_at: list[int] = []


def is_large(payload: dict) -> bool:
    looked_at.append(payload["number"])
    return payload["number"] >= 1_100


def test_the_message_sensor_looks_at_each_message_once_over_reschedules(
    orders: RedisStreamsQueue, stream: str
):
    store = StateStore()
    looked_at.clear()
    found = False
    for first in (0, 5, 1_100):
        orders.enqueue_many({"number": n} for n in range(first, first + 5))
        sensor = MessageSensor(task_id="wait", stream=stream, match=is_large)
        found = sensor.poke(context(store=store)).is_done

    assert found
    assert looked_at == [*range(10), 1_100]
    assert not store


def test_the_message_sensor_remembers_in_airflow_where_it_looked(
    run_dag: RunDag, orders: RedisStreamsQueue, stream: str
):
    looked_at.clear()
    orders.enqueue_many({"number": n} for n in range(5))
    with DAG("rescheduled_sensor", schedule=None) as dag:
        wait: dict[str, Any] = {"mode": "reschedule", "poke_interval": 0.1, "timeout": HANG_S}
        match = enqueue_what_is_waited_for(orders)
        MessageSensor(task_id="wait", stream=stream, match=match, start_id="0-0", **wait)

    run = run_dag(dag)

    assert states(run) == {"wait": "success"}
    assert looked_at == [0, 1, 2, 3, 4, 1_100]


def enqueue_what_is_waited_for(orders: RedisStreamsQueue) -> Callable[[dict], bool]:
    def is_large_and_comes_late(payload: dict) -> bool:
        # The message that matches comes only after the first look is over.
        if payload["number"] == 4:
            threading.Timer(0.3, orders.enqueue, [{"number": 1_100}]).start()
        return is_large(payload)

    return is_large_and_comes_late


def test_the_next_try_of_the_message_sensor_looks_from_the_start(orders: RedisStreamsQueue, stream: str):
    store = StateStore()
    (entry_id,) = orders.enqueue_many([{"state": "ready"}])
    MessageSensor(task_id="wait", stream=stream, equals={"state": "redy"}).poke(context(store=store))

    mended = MessageSensor(task_id="wait", stream=stream, equals={"state": "ready"})
    found = mended.poke(context(try_number=2, store=store))

    assert value_of(found)["id"] == entry_id


def test_the_message_sensor_begins_after_its_start_id(orders: RedisStreamsQueue, stream: str):
    first, second = orders.enqueue_many([{"state": "ready"}, {"state": "ready"}])
    sensor = MessageSensor(task_id="wait", stream=stream, equals={"state": "ready"}, start_id=first)

    assert value_of(sensor.poke(context()))["id"] == second


def test_the_message_sensor_begins_at_the_runs_data_interval(orders: RedisStreamsQueue, stream: str):
    def moment_of(entry_id: str) -> datetime:
        return datetime.fromtimestamp(int(entry_id.partition("-")[0]) / 1000, UTC)

    yesterdays = orders.enqueue({"state": "ready"})
    eventually(lambda: time.time() * 1000 > int(yesterdays.partition("-")[0]) + 2)
    todays = orders.enqueue({"state": "ready"})
    sensor = MessageSensor(task_id="wait", stream=stream, equals={"state": "ready"})
    begin = moment_of(todays)

    of_interval = sensor.poke(context() | {"data_interval_start": begin})
    of_run = sensor.poke(
        context() | {"data_interval_start": None, "dag_run": SimpleNamespace(run_after=begin)}
    )
    too_late = sensor.poke(context() | {"data_interval_start": begin + timedelta(milliseconds=1)})

    assert value_of(of_interval)["id"] == value_of(of_run)["id"] == todays
    assert not too_late


def test_the_message_sensor_begins_where_a_group_stands(orders: RedisStreamsQueue, stream: str):
    orders.enqueue_many([{"state": "ready"}, {"state": "ready"}])
    orders.read(1, count=2)
    sensor = MessageSensor(task_id="wait", stream=stream, equals={"state": "ready"}, group="billing")
    assert not sensor.poke(context())

    new = orders.enqueue({"state": "ready"})

    assert value_of(sensor.poke(context()))["id"] == new


def test_a_message_that_its_group_reads_between_two_pokes_is_found_without_a_store_of_states(
    orders: RedisStreamsQueue, stream: str
):
    orders.enqueue({"state": "open"})
    orders.read(1, count=1)
    sensor = MessageSensor(task_id="wait", stream=stream, equals={"state": "ready"}, group="billing")
    assert not sensor.poke(context())

    new = orders.enqueue({"state": "ready"})
    orders.read(1, count=1)

    assert value_of(sensor.poke(context()))["id"] == new


def test_without_a_store_of_states_a_rescheduled_sensor_refuses_a_group(stream: str):
    arguments: dict[str, Any] = {"stream": stream, "equals": {"state": "ready"}, "group": "billing"}
    sensor = MessageSensor(task_id="wait", mode="reschedule", **arguments)

    with pytest.raises(AirflowFailException, match="deferrable=True"):
        sensor.execute(context())
    with pytest.raises(AirflowRescheduleException):
        sensor.execute(context(store=StateStore()))
    with pytest.raises(TaskDeferred):
        MessageSensor(task_id="wait", mode="reschedule", deferrable=True, **arguments).execute(context())


def drain_sensor(stream: str, count: int, **more: Any) -> DrainSensor:
    settings: dict[str, Any] = {"stream": stream, "group": "billing", "handler": RECORD}
    return DrainSensor(task_id="wait", **settings, count=count, idle_ms=20, **more)


def test_the_drain_sensor_counts_over_pokes_and_takes_no_more_than_it_wants(
    orders: RedisStreamsQueue, stream: str, notes: Callable[[], list[str]]
):
    orders.enqueue_many({"number": n} for n in range(4))
    first = drain_sensor(stream, 6).poke(context())
    orders.enqueue_many({"number": n} for n in range(4, 10))
    second = drain_sensor(stream, 6).poke(context())

    assert (first.is_done, value_of(first)["handled"]) == (False, 4)
    assert (second.is_done, value_of(second)["handled"]) == (True, 6)
    assert sorted(notes()) == [str(n) for n in range(6)]
    assert orders.backlog_stats().lag == 4


def test_the_drain_sensor_takes_nothing_once_it_is_done(
    orders: RedisStreamsQueue, stream: str, notes: Callable[[], list[str]]
):
    orders.enqueue_many({"number": n} for n in range(10))
    drain_sensor(stream, 3).poke(context())

    again = drain_sensor(stream, 3).poke(context(try_number=2))

    assert again.is_done
    assert len(notes()) == 3


def test_a_message_that_fails_is_not_counted(
    orders: RedisStreamsQueue, stream: str, engine: Engine, notes: Callable[[], list[str]]
):
    orders.enqueue_many({"number": n} for n in range(5))
    sensor = DrainSensor(
        task_id="wait",
        stream=stream,
        group="billing",
        handler="tests.with_airflow.handlers:record_even",
        count=5,
        idle_ms=20,
    )

    found = sensor.poke(context())

    assert value_of(found)["handled"] == 3 == len(notes())
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT COUNT(*) FROM conquiet_drain_counts")) == 3


def test_a_message_that_has_the_id_of_one_that_a_failover_lost_is_handled_and_counted(
    orders: RedisStreamsQueue, stream: str, notes: Callable[[], list[str]]
):
    entry_id = orders.enqueue({"number": 1})
    drain_sensor(stream, 2).poke(context())
    client: Any = orders.client
    client.delete(stream)
    client.xadd(stream, {"data": '{"number": 2}'}, id=entry_id)

    found = drain_sensor(stream, 2).poke(context())

    assert (found.is_done, sorted(notes())) == (True, ["1", "2"])


@pytest.mark.parametrize("moment", ["in_the_handler", "after_the_commit"])
def test_a_kill_between_any_two_steps_neither_loses_a_count_nor_adds_one(
    orders: RedisStreamsQueue, stream: str, engine: Engine, moment: str
):
    ids = orders.enqueue_many({"number": n} for n in range(10))
    program = [sys.executable, "-m", "tests.with_airflow.dying_sensor", stream, moment]
    killed = subprocess.run(program, check=False, timeout=HANG_S, cwd=Path(__file__).parents[2])
    assert killed.returncode == -signal.SIGKILL
    assert orders.backlog_stats().pending > 0

    found = drain_sensor(stream, 10).poke(context(try_number=2))

    assert (found.is_done, value_of(found)["handled"]) == (True, 10)
    with engine.connect() as connection:
        assert sorted(connection.scalars(select(effects.c.entry_id))) == sorted(ids)
    assert orders.backlog_stats().pending == 0


def test_the_drain_sensor_runs_as_a_task(
    run_dag: RunDag, orders: RedisStreamsQueue, stream: str, notes: Callable[[], list[str]]
):
    orders.enqueue_many({"number": n} for n in range(5))
    with DAG("draining_sensor", schedule=None) as dag:
        DrainSensor(
            task_id="wait",
            stream=stream,
            group="billing",
            handler="tests.with_airflow.handlers:record",
            count="{{ 2 + 3 }}",
            idle_ms=20,
            timeout=timedelta(seconds=HANG_S),
        )

    run = run_dag(dag)

    assert states(run) == {"wait": "success"}
    assert xcom(run, "wait")["handled"] == 5 == len(notes())


@pytest.fixture
def topic(valkey_url: str, stream: str) -> Iterator[tuple[str, Producer]]:
    name = stream.replace(":", "-")
    with redis.Redis.from_url(valkey_url) as client:
        Topics(client).create(name, partitions=3)
        yield name, Producer(client)


def test_the_message_sensor_reads_all_partitions_of_a_topic_and_matches_payloads(topic):
    name, producer = topic
    producer.send_many(name, [{"number": number} for number in range(30)])
    missing = MessageSensor(task_id="wait", topic=name, equals={"number": 30}).poke(context())

    found = MessageSensor(task_id="wait", topic=name, match=f"{__name__}:is_29").poke(context())

    assert (missing.is_done, found.is_done) == (False, True)
    assert value_of(found)["topic"] == name


def is_29(payload: dict) -> bool:
    return payload["number"] == 29


def test_the_deferrable_message_sensor_searches_from_the_triggerer(
    run_dag: RunDag, orders: RedisStreamsQueue, stream: str
):
    with DAG("deferred_message", schedule=None) as dag:
        MessageSensor(
            task_id="wait",
            stream=stream,
            equals={"number": 7},
            start_id="0-0",
            deferrable=True,
            poke_interval=0.05,
        )
    orders.enqueue({"number": 6})
    sensor: Any = dag.get_task("wait")
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(context())
    trigger = deferred.value.trigger
    path, arguments = trigger.serialize()
    # What the sensor has read, the trigger does not read again.
    assert arguments["after"][stream] != "0-0"
    assert path == "airflow_provider_conquiet.triggers.match.MatchTrigger"
    enqueued = orders.enqueue({"number": 7})

    run = run_dag(dag)

    assert xcom(run, "wait") == {"stream": stream, "id": enqueued}


async def first_event(trigger: Any) -> Any:
    async with aclosing(trigger.run()) as events:
        return await asyncio.wait_for(anext(events), HANG_S)


def test_the_trigger_of_the_message_sensor_finds_what_comes_later(orders: RedisStreamsQueue, stream: str):
    arguments: dict[str, Any] = {"after": {stream: "0-0"}, "is_topic": False, "poll_interval_s": 0.01}
    trigger = MatchTrigger(
        **arguments, match=f"{__name__}:is_29", redis_streams_conn_id="redis_streams_default"
    )

    async def wait() -> Any:
        waiting = asyncio.create_task(first_event(trigger))
        await asyncio.to_thread(orders.enqueue_many, [{"number": number} for number in range(40)])
        return (await waiting).payload

    assert asyncio.run(wait())["stream"] == stream


def test_a_function_cannot_be_searched_with_from_the_triggerer(stream: str):
    with pytest.raises(ValueError, match="import string"):
        MessageSensor(task_id="wait", stream=stream, match=is_29, deferrable=True)


def test_the_drain_sensor_drains_the_partitions_of_a_topic(topic, run_dag: RunDag, notes):
    name, producer = topic
    producer.send_many(name, [{"number": number} for number in range(12)])
    with DAG("drain_topic", schedule=None) as dag:
        DrainSensor(
            task_id="wait",
            topic=name,
            group="billing",
            handler=RECORD,
            count="12",
            idle_ms=20,
            poke_interval=0,
        )

    run = run_dag(dag)

    report = {"topic": name, "group": "billing", "handled": 12, "wanted": 12, "failed": 0, "remaining_lag": 0}
    assert xcom(run, "wait").items() >= report.items()
    assert sorted(map(int, notes())) == list(range(12))


def test_the_deferrable_sensors_of_a_topic_wait_in_the_triggerer(topic, run_dag: RunDag, notes):
    name, producer = topic
    wait: dict[str, Any] = {"topic": name, "deferrable": True, "poke_interval": 0.05}
    with DAG("deferred_topic", schedule=None) as dag:
        found = MessageSensor(task_id="find", equals={"number": 7}, start_id="0-0", **wait)
        drained = DrainSensor(
            task_id="drain",
            group="billing",
            handler=RECORD,
            count=8,
            idle_ms=20,
            poll_interval_s=0.05,
            **wait,
        )
        found >> drained
    waiting: list[Any] = list(dag.tasks)
    for task in waiting:
        with pytest.raises(TaskDeferred):
            task.execute(context())
    producer.send_many(name, [{"number": number} for number in range(7)])
    timer = threading.Timer(2.0, producer.send_many, [name, [{"number": 7}]])
    timer.start()

    run = run_dag(dag)

    timer.join()
    assert xcom(run, "find")["topic"] == name
    assert (xcom(run, "drain")["handled"], sorted(notes())) == (8, [str(number) for number in range(8)])


def test_the_deferrable_drain_sensor_waits_for_more_in_the_triggerer(
    orders: RedisStreamsQueue, stream: str, run_dag: RunDag, notes
):
    orders.enqueue_many({"number": number} for number in range(2))
    arguments: dict[str, Any] = {"stream": stream, "group": "billing", "handler": RECORD, "idle_ms": 20}
    sensor = DrainSensor(task_id="sensor", count=3, deferrable=True, **arguments)

    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(context())
    orders.enqueue({"number": 2})
    report = sensor.execute_again(context(), **(deferred.value.kwargs or {}))

    assert deferred.value.method_name == "execute_again"
    assert (report["handled"], notes()) == (3, ["0", "1", "2"])
    with DAG("deferred_drain_sensor", schedule=None) as dag:
        DrainSensor(task_id="wait", count=2, deferrable=True, poll_interval_s=0.05, **arguments)
    timer = threading.Timer(2.0, lambda: orders.enqueue_many({"number": number} for number in (3, 4)))
    timer.start()
    assert xcom(run_dag(dag), "wait")["handled"] == 2
    timer.join()


def test_what_failed_is_drained_again_though_nothing_new_comes(orders: RedisStreamsQueue, stream: str):
    orders.enqueue({"number": 1})
    handler = "tests.with_airflow.handlers:record_even"
    sensor = DrainSensor(
        task_id="sensor",
        stream=stream,
        group="billing",
        handler=handler,
        count=1,
        idle_ms=20,
        deferrable=True,
        poke_interval=0.2,
    )

    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(context())
    event = asyncio.run(first_event(deferred.value.trigger))

    assert event.payload["pending"] == 1
