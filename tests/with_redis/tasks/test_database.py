"""Tasks with a `DbSession` while their database is away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from conquiet import DbSession
from conquiet.tasks import TaskApp, TaskContext, scripts
from tests.eventually import eventually
from tests.services import database, open_engine
from tests.with_redis.tasks.conftest import StartWorker

PATIENCE_S = 600.0


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """A database in a folder of its own, which can be taken away."""
    folder = tmp_path / "database"
    folder.mkdir()
    with database("sqlite", folder) as url:
        opened = open_engine(url)
        with opened.begin() as connection:
            connection.execute(text("CREATE TABLE notes (attempt INTEGER)"))
        yield opened
        opened.dispose()


@pytest.fixture
def note(app: TaskApp) -> Any:
    @app.task(name="note", max_retries=0)
    def note(session: DbSession, ctx: TaskContext) -> int:
        session.execute(text("INSERT INTO notes VALUES (:attempt)"), {"attempt": ctx.attempt})
        return 7

    return note


def count(engine: Engine) -> int | None:
    with engine.connect() as connection:
        return connection.execute(text("SELECT count(*) FROM notes")).scalar()


def test_a_worker_waits_for_its_database_when_redis_was_unavailable_too(
    app: TaskApp, engine: Engine, note: Any, start: StartWorker, tmp_path: Path, caplog: Any
) -> None:
    worker = start()
    note.enqueue().result(PATIENCE_S)

    (tmp_path / "database").rename(tmp_path / "away")
    engine.dispose()

    def has_begun_anew() -> bool:
        # Between two calls it would not notice.
        app.client.client_kill_filter(_type="normal", skipme=True)
        return "could not be created" in caplog.text or not worker.is_running

    eventually(has_begun_anew, every_s=0.1)
    (tmp_path / "away").rename(tmp_path / "database")

    assert worker.is_running
    assert note.enqueue().result(PATIENCE_S) == 7
    assert count(engine) == 2


def test_a_task_that_was_committed_waits_for_its_result_and_has_not_failed(
    app: TaskApp, engine: Engine, note: Any, start: StartWorker, caplog: Any
) -> None:
    worker = start()
    handle = note.enqueue()
    handle.result(PATIENCE_S)
    worker.stop()
    worker.join()
    # As if its worker had died before the ack, at its last attempt.
    app.client.delete(app.keys("default").record(handle.id))
    keys = app.keys("default")
    envelope = app.envelope(note.call())
    envelope.id = handle.id
    app.send_envelopes([(envelope, note.options)])
    scripts.settle_and_read(app.client, keys, "dead", (), count=1, max_bytes=1 << 20)
    scripts.take_over(app.client, keys, dead=["dead"])
    app.control.pause("default")
    second = start()
    # By then it has looked for its tables, and made those that were missing.
    eventually(lambda: all(loop._loop is not None for loop in second._loops))
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE conquiet_task_results RENAME TO elsewhere"))

    app.control.resume("default", timeout_s=PATIENCE_S)
    eventually(lambda: "could not be read" in caplog.text or _is_dead_letter(handle))
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE elsewhere RENAME TO conquiet_task_results"))

    assert handle.result(PATIENCE_S) == 7
    assert count(engine) == 1


def _is_dead_letter(handle: Any) -> bool:
    status = handle.status()
    return status is not None and status.state == "dead_lettered"
