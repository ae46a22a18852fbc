"""Airflow: what a task adds to the drain that it runs, and what reading its DAGs costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import Engine, create_engine, event

from benchmarks.bench import Bench
from benchmarks.databases import use_wal
from benchmarks.errors import BenchmarkError
from benchmarks.measurement import Comparison, Figure, Measurement
from benchmarks.workload import GROUP, Workload, insert_order, orders_to_insert
from conquiet import DrainLimits, QueueConfig, RedisStreamsQueue, drain

# Airflow creates its home when it is imported; not in the home of the user who measures.
_HOME = tempfile.TemporaryDirectory(prefix="conquiet-bench-airflow-")
os.environ["AIRFLOW_HOME"] = _HOME.name

DAGS = Path(__file__).parents[1] / "dags"

#: The first DAG pays for Airflow itself, so an empty one is read before; CPU time, whatever else runs.
_READ = """
import pathlib, sys, tempfile, time
from airflow.dag_processing.dagbag import DagBag
folder = tempfile.TemporaryDirectory()
empty = pathlib.Path(folder.name) / "empty.py"
empty.write_text(
    "from airflow.sdk import DAG, BaseOperator\\n"
    "with DAG('empty', schedule=None): BaseOperator(task_id='nothing')"
)
assert not DagBag(dag_folder=str(empty)).import_errors
started = time.process_time()
bag = DagBag(dag_folder=sys.argv[1])
print(bag.import_errors or f"seconds: {time.process_time() - started}")
"""


#: What the triggers of so many deferred sensors do in one event loop, as in a triggerer, on empty streams.
_WATCH = """
import asyncio, json, resource, sys
import redis
from airflow_provider_conquiet.triggers.backlog import BacklogTrigger
count, seconds, url = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
client = redis.Redis.from_url(url)
connected = lambda: client.info("clients")["connected_clients"]
before = connected()

def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime

async def watch(number):
    async for _ in BacklogTrigger(stream=f"bench:{number}", group="g", poll_interval_s=1.0).run():
        pass

async def main():
    watching = [asyncio.create_task(watch(number)) for number in range(count)]
    await asyncio.sleep(3)
    begun = used()
    await asyncio.sleep(seconds)
    print(json.dumps({"share": (used() - begun) / seconds, "connections": connected() - before}))
    for one in watching:
        one.cancel()
    await asyncio.wait(watching)

asyncio.run(main())
"""
_SENSORS = 200
_WATCHED_S = 30


@dataclass(frozen=True, slots=True)
class Task:
    """A filled stream, the server's URL, and the connection by which a task finds both."""

    workload: Workload
    redis_url: str

    @property
    def db_url(self) -> str:
        return self.workload.raw_engine.url.render_as_string(hide_password=False)


@contextmanager
def _task(bench: Bench, messages: int) -> Iterator[Task]:
    with orders_to_insert(bench, messages) as workload:
        task = Task(workload, bench.server.url)
        server = urlsplit(task.redis_url)
        fields = {"conn_type": "redis_streams", "host": server.hostname, "port": server.port}
        os.environ["AIRFLOW_CONN_REDIS_STREAMS_DEFAULT"] = json.dumps(
            fields | {"extra": {"db_url": task.db_url}}
        )
        with _sqlite_as_applications_use_it():
            yield task


@contextmanager
def _sqlite_as_applications_use_it() -> Iterator[None]:
    # On the class: a task makes its engine itself. Otherwise the disk's flushes would be all there is to see.
    event.listen(Engine, "connect", use_wal)
    try:
        yield
    finally:
        event.remove(Engine, "connect", use_wal)


def _drain(task: Task) -> None:
    """As a script would: its own client, its own engine, and the drain."""
    config = QueueConfig(task.workload.stream, GROUP, "script")
    engine = create_engine(task.db_url)
    with RedisStreamsQueue.from_url(task.redis_url, config) as queue:
        drain(queue, insert_order, engine, DrainLimits(max_messages=task.workload.messages))
    engine.dispose()


def _execute(task: Task) -> None:
    """As a worker does, once it has read the DAG."""
    from airflow_provider_conquiet.operators.drain import DrainOperator

    workload = task.workload
    operator = DrainOperator(
        task_id="drain",
        stream=workload.stream,
        group=GROUP,
        handler="benchmarks.workload:insert_order",
        max_messages=workload.messages,
    )
    names: dict[str, Any] = {"dag_id": "bench", "run_id": "run", "map_index": -1, "try_number": 1}
    operator.execute({"ti": SimpleNamespace(task_id="drain", **names)})  # type: ignore[typeddict-item]


def _slowest_dag(_bench: Bench) -> float:
    return max(_seconds_to_read(path) for path in DAGS.glob("*.py"))


def _watch_share(bench: Bench) -> float:
    return _watched(bench)["share"]


def _watch_connections(bench: Bench) -> float:
    return _watched(bench)["connections"]


@cache
def _watched(bench: Bench) -> dict[str, float]:
    """CPU as a share of a core, and connections to Redis."""
    server = urlsplit(bench.server.url)
    fields = {"conn_type": "redis_streams", "host": server.hostname, "port": server.port}
    command = [sys.executable, "-c", _WATCH, str(_SENSORS), str(_WATCHED_S), bench.server.url]
    environment = os.environ | {"AIRFLOW_CONN_REDIS_STREAMS_DEFAULT": json.dumps(fields)}
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment, timeout=10 * _WATCHED_S
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _seconds_to_read(path: Path) -> float:
    command = [sys.executable, "-c", _READ, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    last_line = done.stdout.splitlines()[-1]
    if not last_line.startswith("seconds: "):
        raise BenchmarkError(f"{path.name} cannot be read: {last_line}")
    return float(last_line.removeprefix("seconds: "))


MEASUREMENTS: list[Measurement] = [
    Comparison(
        name="DrainOperator.execute vs drain(), 10,000 messages",
        prepare=_task,
        raw=_drain,
        ours=_execute,
        messages=10_000,
        bar=0.95,
        rounds=15,
    ),
    Figure(
        name=f"{_SENSORS} deferred sensors that poll every second",
        unit="of a core",
        take=_watch_share,
        bar=0.2,
    ),
    Figure(name=f"connections of {_SENSORS} deferred sensors", unit="", take=_watch_connections, bar=4),
    Figure(name="slowest DAG to read, beyond Airflow's import", unit="s of CPU", take=_slowest_dag, bar=1.0),
]
