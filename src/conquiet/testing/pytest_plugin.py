"""Fixtures for pytest where conquiet is installed: a server, a queue, a topic, a database."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# In the fixtures: this module is imported in every run of pytest, with conquiet or without.
if TYPE_CHECKING:
    from sqlalchemy import Engine

    from conquiet import EmbeddedServer, RedisStreamsQueue
    from conquiet.mq import Topic


@pytest.fixture(scope="session")
def conquiet_server() -> Iterator[EmbeddedServer]:
    """A private Valkey for the whole run, of each worker of `pytest -n`; `.url` is its URL."""
    from conquiet import EmbeddedServer

    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def conquiet_queue(conquiet_server: EmbeddedServer) -> Iterator[RedisStreamsQueue]:
    """A queue on a stream of the test's own, `queue.config.stream_key`, in the group "test"."""
    from conquiet import QueueConfig, RedisStreamsQueue, unique_consumer_name

    config = QueueConfig(f"test:{uuid.uuid4().hex[:12]}", "test", unique_consumer_name("test"), block_ms=50)
    with RedisStreamsQueue.from_url(conquiet_server.url, config) as queue:
        yield queue


@pytest.fixture
def conquiet_topic(conquiet_server: EmbeddedServer) -> Iterator[Topic]:
    """A topic of the test's own, `topic.name`, with two partitions."""
    from conquiet.mq import Topics
    from conquiet.queue import open_client

    with open_client(conquiet_server.url) as client:
        yield Topics(client).create(f"test-{uuid.uuid4().hex[:12]}", partitions=2)


@pytest.fixture
def conquiet_database(tmp_path: Path) -> Iterator[Engine]:
    """An engine on an empty SQLite database of the test's own; `engine.url` is its URL."""
    from conquiet.db.engine import open_engine

    engine = open_engine(f"sqlite:///{tmp_path}/conquiet-test.db")
    yield engine
    engine.dispose()
