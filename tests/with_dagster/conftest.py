"""Fixtures of the Dagster tests: the real framework, a private server, a private database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import redis
from sqlalchemy import Engine, create_engine, select

from conquiet import RedisStreamsQueue
from dagster_conquiet import DatabaseResource, DrainSpec, RedisStreamsResource
from tests.conftest import effects

Enqueue = Callable[..., list[str]]


@pytest.fixture
def server_url(valkey_url: str) -> str:
    """One kind of server is enough here: what differs between them is the core's matter."""
    return valkey_url


@pytest.fixture
def database_url(tmp_path) -> str:
    """A database with the table `effects`, which subprocesses can open too."""
    url = f"sqlite:///{tmp_path}/effects.db"
    engine = create_engine(url)
    effects.create(engine)
    engine.dispose()
    return url


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    opened = create_engine(database_url)
    yield opened
    opened.dispose()


@pytest.fixture
def resources(server_url: str, database_url: str) -> dict[str, Any]:
    return {
        "redis_streams": RedisStreamsResource(url=server_url),
        "database": DatabaseResource(url=database_url),
    }


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as opened:
        yield opened


@pytest.fixture
def kept_instance(tmp_path) -> Iterator[dg.DagsterInstance]:
    """An instance that subprocesses can open."""
    home = tmp_path / "dagster"
    home.mkdir()
    with dg.DagsterInstance.local_temp(str(home)) as opened:
        yield opened


@pytest.fixture
def place(monkeypatch, server_url, database_url, stream, tmp_path) -> Path:
    """What a step's process must find in its environment."""
    monkeypatch.setenv("CONQUIET_TEST_REDIS", server_url)
    monkeypatch.setenv("CONQUIET_TEST_DATABASE", database_url)
    monkeypatch.setenv("CONQUIET_TEST_STREAM", stream)
    monkeypatch.setenv("CONQUIET_TEST_MARKER", str(tmp_path / "died"))
    return tmp_path


@pytest.fixture
def spec(stream: str) -> DrainSpec:
    """The drain that most tests are about."""
    return DrainSpec(stream=stream, group="billing", handler="tests.with_dagster.handlers:note_effect")


@pytest.fixture
def enqueue(queue: RedisStreamsQueue) -> Enqueue:
    """Adds numbered messages to the test's stream."""

    def add(count: int, **also: Any) -> list[str]:
        return queue.enqueue_many({"n": n, **also} for n in range(count))

    return add


@pytest.fixture
def effects_seen(engine: Engine) -> Callable[[], list[str]]:
    """The entry ids of all effects, doubles too, in order."""

    def read() -> list[str]:
        with engine.connect() as connection:
            return sorted(connection.scalars(select(effects.c.entry_id)))

    return read


@pytest.fixture
def pending(client: redis.Redis, stream: str) -> Callable[[], int]:
    return lambda: client.xpending(stream, "billing")["pending"]


@pytest.fixture
def consumers(client: redis.Redis, stream: str) -> Callable[[], set[str]]:
    """The consumers that the group knows, but for the one that the fixtures enqueue with."""

    def names() -> set[str]:
        return {info["name"].decode() for info in client.xinfo_consumers(stream, "billing")} - {"worker-1"}

    return names
