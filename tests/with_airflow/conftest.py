"""Fixtures of the Airflow tests: a private Airflow for the process, a server and a database for the test."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from sqlalchemy import Engine, select

from airflow_provider_conquiet import testing
from conquiet import QueueConfig, RedisStreamsQueue
from tests.conftest import effects
from tests.with_airflow import home

# Before any test module imports Airflow, which reads its settings then.
home.choose()

RunDag = Callable[..., Any]


@pytest.fixture(scope="session")
def airflow_database() -> None:
    """Airflow's metadata database, made once for this process."""
    testing.init_database()


@pytest.fixture
def run_dag(airflow_database: None) -> RunDag:
    """Runs a DAG as `dag.test()` does, and returns its run."""
    return testing.run_dag


@pytest.fixture
def airflow_connection(monkeypatch: pytest.MonkeyPatch, valkey_url: str, engine: Engine) -> dict[str, Any]:
    """The default connection: the test's server, and as the application's database the one of `engine`."""
    server = urlsplit(valkey_url)
    fields = {
        "conn_type": "redis_streams",
        "host": server.hostname,
        "port": server.port,
        "extra": {"db_url": engine.url.render_as_string(hide_password=False)},
    }
    monkeypatch.setenv("AIRFLOW_CONN_REDIS_STREAMS_DEFAULT", json.dumps(fields))
    return fields


@pytest.fixture
def valkey(valkey_url: str) -> Iterator[redis.Redis]:
    """A plain client of the connection's server, to look at it from outside."""
    with redis.Redis.from_url(valkey_url, decode_responses=True) as opened:
        yield opened


@pytest.fixture
def orders(valkey_url: str, stream: str) -> Iterator[RedisStreamsQueue]:
    """A queue of the test's own stream, read by no task."""
    with RedisStreamsQueue.from_url(valkey_url, QueueConfig(stream, "billing", "outside")) as queue:
        yield queue


@pytest.fixture
def topic_name() -> str:
    """A topic name that no other test has."""
    return f"topic-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def notes(engine: Engine) -> Callable[[], list[str]]:
    """What the handlers have written so far, in that order."""

    def written() -> list[str]:
        with engine.connect() as connection:
            rows = connection.execute(select(effects.c.note))
            return [str(note) for (note,) in rows]

    return written


def xcom(run: Any, task_id: str, map_index: int = -1) -> Any:
    """What the task returned."""
    return testing.DagTestBed.returned(run, task_id, map_index)


def states(run: Any) -> dict[str, str]:
    """The state of every task of the run."""
    return {ti.task_id: str(ti.state) for ti in run.get_task_instances()}


def tries(run: Any, task_id: str) -> int:
    """How often Airflow ran the task."""
    return int(run.get_task_instance(task_id).try_number)


def asset_events(run: Any) -> dict[str, Any]:
    """What the run told of assets: the extra of each event, by URI."""
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session

    with create_session() as session:
        events = session.scalars(select(AssetEvent).where(AssetEvent.source_run_id == run.run_id))
        return {event.asset.uri: event.extra for event in events}


@pytest.fixture
def context() -> Callable[..., Any]:
    """Makes the part of a task's context that the operators read, for calls without Airflow."""

    def make(task: Any, **fields: Any) -> dict[str, Any]:
        names = {"dag_id": "dag", "run_id": "run", "task_id": task.task_id, "map_index": -1, "try_number": 1}
        return {"ti": SimpleNamespace(**names | fields), "outlet_events": {}}

    return make
