"""Fixtures of the task layer's tests: an app with queues of its own, and workers that end with the test."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from sqlalchemy import Engine

from conquiet.tasks import RetryPolicy, TaskApp, Worker, WorkerConfig, clock
from conquiet.tasks.beat import claims, deliveries
from tests.with_redis.tasks.beats import NOON, set_clock

#: Quick retries: no test waits for a second without a reason.
QUICK = RetryPolicy(base_delay_ms=1, max_delay_ms=5)

StartWorker = Callable[..., Worker]


@pytest.fixture(autouse=True)
def _a_tick_has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine cuts no tick of a beat short; the tests of that move the time themselves."""
    for module in (claims, deliveries):
        monkeypatch.setattr(module, "monotonic", lambda: 0.0)


@pytest.fixture
def at_noon() -> Iterator[None]:
    """Schedules see a clock of the test, which begins at noon."""
    set_clock(NOON)
    yield
    clock.set_clock(None)


@pytest.fixture
def app(server_url: str, engine: Engine) -> Iterator[TaskApp]:
    """An app whose keys no other test has."""
    with TaskApp(server_url, database=engine, namespace=f"tasks-{uuid.uuid4().hex[:10]}") as opened:
        yield opened


@pytest.fixture
def start(app: TaskApp) -> Iterator[StartWorker]:
    """Starts workers with threads."""
    with ExitStack() as running:

        def begin(**config: Any) -> Worker:
            values: dict[str, Any] = {"concurrency": 1, "pool": "thread", "heartbeat_ttl_s": 20.0} | config
            return running.enter_context(Worker(app, WorkerConfig(**values)))

        yield begin
