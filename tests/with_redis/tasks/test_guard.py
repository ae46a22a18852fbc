"""What the parent of a process pool does for the task of a child that died."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event

from conquiet import DbSession
from conquiet.tasks import ProcessDiedError, TaskApp, TaskFailedError, TaskHandle, WorkerConfig, scripts
from conquiet.tasks.worker.guard import DeadChild, TaskGuard
from conquiet.tasks.worker.slot import RunningTask

PATIENCE_S = 600.0
#: Of the loop of a child of worker "w".
CONSUMER = "w.1.0.1"


@pytest.fixture
def shop(app: TaskApp) -> TaskApp:
    """An app with a task that takes a session, and one that takes none; neither is tried again."""

    @app.task(name="bill", max_retries=0)
    def bill(session: DbSession) -> None:
        """Runs nowhere: its process is dead."""

    @app.task(name="ship", max_retries=0)
    def ship() -> None:
        """As the other one."""

    return app


@contextmanager
def guarding(app: TaskApp) -> Iterator[TaskGuard]:
    # So long that nothing comes from a heartbeat that ends.
    guard = TaskGuard(app, WorkerConfig(name="w", heartbeat_ttl_s=3600.0), lambda: ())
    guard.start()
    try:
        yield guard
    finally:
        guard.stop()


def die_with(app: TaskApp, name: str, guard: TaskGuard) -> TaskHandle:
    """A task whose child is dead; its heartbeat has ended."""
    handle, keys = app.enqueue(name), app.keys("default")
    scripts.heartbeat(app.client, keys, [CONSUMER], 1)
    [entry] = scripts.settle_and_read(app.client, keys, CONSUMER, (), count=1, max_bytes=1 << 20).entries
    running = RunningTask(CONSUMER, "default", entry.priority, entry.entry_id, 1, 1, None)
    guard.died(DeadChild("w.1", running, ProcessDiedError("was killed by signal 9 (SIGKILL)")))
    return handle


def test_a_task_without_a_session_is_settled_while_the_database_is_unavailable(
    shop: TaskApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(shop.__dict__, "engine", create_engine("sqlite:////nowhere/shop.db"))

    with guarding(shop) as guard, pytest.raises(TaskFailedError, match="killed by signal 9"):
        die_with(shop, "ship", guard).result(PATIENCE_S)


def test_a_task_is_not_taken_over_while_the_database_is_asked(
    shop: TaskApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    monkeypatch.setitem(shop.__dict__, "engine", engine)
    is_asked, may_answer = threading.Event(), threading.Event()

    @event.listens_for(engine, "before_cursor_execute")
    def wait(*_: Any) -> None:
        is_asked.set()
        may_answer.wait(PATIENCE_S)

    with guarding(shop) as guard:
        handle = die_with(shop, "bill", guard)
        assert is_asked.wait(PATIENCE_S)
        freed = scripts.take_over(shop.client, shop.keys("default"))
        may_answer.set()
        with pytest.raises(TaskFailedError, match="killed by signal 9"):
            handle.result(PATIENCE_S)

    assert freed == []
