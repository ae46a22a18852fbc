"""Fixtures of the MQ's tests: a topic of the test's own, and consumers that end with it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis

from conquiet.mq import Producer, Topic, Topics
from tests.with_redis.mq.consuming import Consumers


@pytest.fixture
def name() -> str:
    """A topic name that no other test has."""
    return f"orders-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def topics(client: redis.Redis) -> Topics:
    return Topics(client)


@pytest.fixture
def topic(topics: Topics, name: str) -> Iterator[Topic]:
    """One topic with one partition."""
    with _gone_afterwards(topics, name):
        yield topics.create(name)


@pytest.fixture
def wide(topics: Topics, name: str) -> Iterator[Topic]:
    """One topic with four partitions."""
    with _gone_afterwards(topics, f"{name}-wide"):
        yield topics.create(f"{name}-wide", 4)


@contextmanager
def _gone_afterwards(topics: Topics, name: str) -> Iterator[None]:
    # Other tests look at every topic of the server, and some of these are broken on purpose.
    yield
    if name in topics.names():
        topics.delete(name)


@pytest.fixture
def producer(client: redis.Redis) -> Producer:
    return Producer(client)


@pytest.fixture
def start() -> Iterator[Consumers]:
    """Starts consumers."""
    consumers = Consumers()
    try:
        yield consumers
    finally:
        consumers.end()


@pytest.fixture
def send(producer: Producer, topic: Topic) -> Callable[..., list[str]]:
    """Sends `{"n": 0}`, `{"n": 1}` … to the topic with one partition."""

    def sent(count: int, *, start: int = 0) -> list[str]:
        return producer.send_many(topic.name, [{"n": n} for n in range(start, start + count)])

    return sent
