"""The results of tasks with a session, in every database, by the suite that users run on their stores."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, make_url, text

from conquiet import DbSession
from conquiet.consume import purges
from conquiet.errors import DatabaseUnavailableError
from conquiet.tasks import SqlResults, TaskApp, Worker, WorkerConfig
from conquiet.testing import ResultStoreContract
from tests.link import Link
from tests.services import open_engine
from tests.with_databases.conftest import only_on
from tests.with_databases.servers import kill

PATIENCE_S = 600.0


class TestSqlResults(ResultStoreContract):
    """The default store."""

    takes_session = True

    @pytest.fixture(autouse=True)
    def _use(self, valkey_url: str, db: Engine) -> None:
        self._url, self._db = valkey_url, db

    def make_app(self) -> TaskApp:
        """On the database of the test."""
        return TaskApp(self._url, database=self._db, namespace=f"tasks-{uuid.uuid4().hex[:10]}")


@pytest.fixture
def app(valkey_url: str, db: Engine) -> TaskApp:
    return TaskApp(valkey_url, database=db, namespace=f"tasks-{uuid.uuid4().hex[:10]}")


def test_a_task_with_a_long_id_as_of_a_schedule_with_a_long_name_has_its_effect_and_its_result(
    app: TaskApp, db: Engine
) -> None:
    @app.task(name="count")
    def count(session: DbSession) -> int:
        return int(session.scalar(text("SELECT 41")) or 0) + 1

    schedule = app.new_schedule(
        "a-nightly-bill-of-every-region-for-the-accounting-of-the-shop", count, every=60
    )
    envelope = app.envelope(count.call())
    envelope.id = schedule.occurrence_id(1_767_225_600_000)
    with app, Worker(app, WorkerConfig(pool="thread", concurrency=1)):
        [handle] = app.send_envelopes([(envelope, count.options)])

        assert handle.result(PATIENCE_S) == 42
        assert app.result_store.load(db, handle.id) == b"42"


def test_workers_delete_results_that_are_older_than_the_store_keeps(
    app: TaskApp, db: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purges, "_EVERY_S", 0.0)
    store = app.result_store = SqlResults(keep_for=timedelta(days=30))
    store.create_table(db)
    now_ms, day_ms = time.time_ns() // 1_000_000, 86_400_000
    rows: list[dict[str, Any]] = [
        {"id": f"{uuid.uuid4()}", "at": now_ms - days * day_ms} for days in (29, 31, 400)
    ]
    with db.begin() as connection:
        connection.execute(text("INSERT INTO conquiet_task_results VALUES (:id, 'null', :at)"), rows)

    @app.task(name="one")
    def one(session: DbSession) -> int:
        return 1

    with app, Worker(app, WorkerConfig(pool="thread", concurrency=1)):
        handles = one.enqueue_many({} for _ in range(3))
        assert [handle.result(PATIENCE_S) for handle in handles] == [1, 1, 1]
        one.enqueue().result(PATIENCE_S)

    kept = [store.load(db, row["id"]) is not None for row in rows]
    assert kept == [True, False, False]


@only_on("postgres", "mariadb")
def test_a_worker_that_starts_as_its_database_restarts_waits_for_it(
    app: TaskApp, db: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    refused: list[str] = []

    @app.task(name="count")
    def count(session: DbSession) -> int:
        return int(session.scalar(text("SELECT 41")) or 0) + 1

    def end_connection(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "CREATE TABLE" in statement and len(refused) < 3:
            refused.append(statement)
            number = connection.connection.dbapi_connection.info.backend_pid if is_postgres else None
            kill(admin, number or connection.connection.dbapi_connection.thread_id())

    is_postgres = db.dialect.name == "postgresql"
    admin = open_engine(db.url.render_as_string(hide_password=False))
    event.listen(db, "before_cursor_execute", end_connection)
    with app, Worker(app, WorkerConfig(pool="thread", concurrency=1)):
        handle = count.enqueue()

        assert handle.result(PATIENCE_S) == 42
    event.remove(db, "before_cursor_execute", end_connection)
    admin.dispose()
    assert len(refused) == 3
    assert caplog.text.count("could not be created") == 1


@only_on("postgres", "mariadb")
def test_a_worker_that_starts_without_its_database_ends_when_that_lasts_too_long(
    valkey_url: str, db: Engine
) -> None:
    with Link(db.url.host or "127.0.0.1", db.url.port or 3306) as link:
        link.cut()
        away = create_engine(make_url(db.url).set(host="127.0.0.1", port=link.port))
        app = TaskApp(valkey_url, database=away, namespace=f"tasks-{uuid.uuid4().hex[:10]}")

        @app.task(name="one")
        def one(session: DbSession) -> int:
            return 1

        worker = Worker(app, WorkerConfig(pool="thread", concurrency=1, max_outage_s=0.2))
        worker.start()
        with app, pytest.raises(DatabaseUnavailableError):
            worker.join()


@pytest.mark.parametrize("keep_for", [timedelta(0), 30])
def test_a_store_of_results_keeps_them_for_a_time_or_for_ever(keep_for: Any) -> None:
    with pytest.raises(ValueError, match="keep_for must be a timedelta above 0"):
        SqlResults(keep_for=keep_for)
