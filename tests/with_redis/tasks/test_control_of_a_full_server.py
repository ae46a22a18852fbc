"""Control on a server that is full: what takes tasks away must work there most of all."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from conquiet import QueueError
from conquiet.tasks import (
    Beat,
    BeatConfig,
    DirectoryPayloads,
    MessageTarget,
    TaskApp,
    TaskFailedError,
    Worker,
    WorkerConfig,
)
from tests.eventually import eventually
from tests.services import REDIS_KINDS
from tests.with_redis.full_server import LARGE, fill, server_of_its_own

PATIENCE_S = 600.0


@pytest.fixture(params=REDIS_KINDS)
def app(request: pytest.FixtureRequest) -> Iterator[TaskApp]:
    """An app on a server of its own."""
    with server_of_its_own(request.param) as client:
        port = client.connection_pool.connection_kwargs["port"]
        with TaskApp(f"redis://127.0.0.1:{port}/0", max_bytes=1 << 21) as opened:
            yield opened


def test_tasks_are_revoked_limited_and_drained_and_workers_answer(app: TaskApp) -> None:
    begun: list[int] = []
    may_begin = threading.Event()

    @app.task(name="one", rate_limit="100000/s")
    def one(number: int, text: str) -> int:
        may_begin.wait(PATIENCE_S)
        begun.append(number)
        return number

    @app.task(name="later")
    def later() -> None: ...

    delayed = later.with_options(delay_s=3_600).enqueue()
    first = one.enqueue(0, "")
    sent = fill(app.client, lambda number, text: one.enqueue(number + 1, text))  # type: ignore[arg-type]
    last = app.control.tasks("default", "queued", limit=sent + 1).tasks[-1]
    with pytest.raises(QueueError, match="The server is full"):
        one.enqueue(0, LARGE)

    assert delayed.revoke().is_revoked
    assert app.revoke(last.id, "default").is_revoked
    app.control.pause("default")
    app.control.set_rate("one", "50000/s", queue="default")
    with Worker(app, WorkerConfig(pool="thread", concurrency=1, name="w")):
        assert app.control.ping(timeout_s=PATIENCE_S).keys() == {"w"}
        app.control.resume("default", timeout_s=PATIENCE_S)
        may_begin.set()
        assert first.result(PATIENCE_S) == 0
        with pytest.raises(TaskFailedError, match="revoked"):
            app.handle(last.id).result(PATIENCE_S)
        eventually(lambda: app.client.xlen(app.keys("default").streams[5]) == 0)

    assert len(begun) == sent
    assert sent not in begun


def test_a_large_result_of_a_task_that_was_accepted_is_stored(app: TaskApp, tmp_path: Path) -> None:
    app.payload_store = store = DirectoryPayloads(tmp_path)
    store.create()
    app.codec.max_bytes = 10_000

    @app.task(name="large", max_retries=0)
    def large(text: str) -> str:
        return "x" * 50_000

    first = large.enqueue("")
    fill(app.client, lambda _, text: large.with_options(priority=0).enqueue(text))  # type: ignore[arg-type]
    with Worker(app, WorkerConfig(pool="thread", concurrency=1)):
        assert first.result(PATIENCE_S) == "x" * 50_000


def test_a_beat_leads_on_and_enqueues_what_was_due_when_there_is_room_again(app: TaskApp) -> None:
    @app.task(name="one")
    def one(number: int, text: str) -> int:
        return number

    app.schedule("s", "two", at=datetime.now(UTC), misfire_grace_s=86_400)
    app.schedule(
        "message",
        MessageTarget(kind="stream", name="m", payload={}),
        at=datetime.now(UTC),
        misfire_grace_s=86_400,
    )
    beat = Beat(app, BeatConfig(name="b", retry_s=0.05))
    beat.apply_declared()
    fill(app.client, lambda number, text: one.enqueue(number, text))  # type: ignore[arg-type]

    assert beat.tick().errors == 2
    assert "The server is full" in (app.schedules.get("s").stored.error or "")
    stats = app.schedules.stats()
    assert (stats.leader, stats.pending, app.schedules.get("s").stored.runs) == ("b", 0, 0)

    app.client.config_set("maxmemory", 0)
    eventually(lambda: (beat.tick(), app.client.xlen("m") and app.schedules.get("s").stored.runs == 1)[1])
    assert app.schedules.get("s").stored.error is None
    assert app.schedules.stats().pending == 0
