"""`async def` tasks that take an `AsyncSession`: effects, inbox row and result in one transaction."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from conquiet import DbSession
from conquiet.errors import SettingsError
from conquiet.tasks import (
    Retry,
    SoftTimeLimitError,
    TaskApp,
    TaskContext,
    TaskFailedError,
    Worker,
    WorkerConfig,
    scripts,
)
from tests.eventually import eventually
from tests.services import open_engine
from tests.with_redis.tasks.conftest import QUICK

PATIENCE_S = 600.0
Start = Callable[..., Worker]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@pytest.fixture
def engine(path: Path) -> Iterator[Engine]:
    """For looks at the database."""
    opened = open_engine(f"sqlite:///{path}")
    with opened.begin() as connection:
        connection.execute(text("CREATE TABLE notes (text VARCHAR(32))"))
    yield opened
    opened.dispose()


@pytest.fixture
def async_engine(path: Path) -> AsyncEngine:
    return create_async_engine(f"sqlite+aiosqlite:///{path}", connect_args={"timeout": 60})


@pytest.fixture
def app(server_url: str, engine: Engine, async_engine: AsyncEngine) -> Iterator[TaskApp]:
    """Its database can only await; the table is there."""
    with TaskApp(server_url, database=async_engine, namespace=f"tasks-{uuid.uuid4().hex[:10]}") as opened:
        yield opened


@pytest.fixture
def start(app: TaskApp) -> Iterator[Start]:
    with ExitStack() as running:

        def begin(**config: Any) -> Worker:
            values: dict[str, Any] = {"concurrency": 1, "pool": "thread", "heartbeat_ttl_s": 20.0} | config
            return running.enter_context(Worker(app, WorkerConfig(**values)))

        yield begin


async def insert(session: AsyncSession, note: str) -> None:
    await session.execute(text("INSERT INTO notes VALUES (:note)"), {"note": note})


def rows(engine: Engine, table: str) -> list[Any]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(f"SELECT * FROM {table}"))]


@pytest.mark.parametrize("pool", ["thread", "async"])
def test_an_async_task_gets_a_session_and_commits_with_its_inbox_row_and_its_result(
    app: TaskApp, engine: Engine, start: Start, pool: str
) -> None:
    @app.task
    async def note(name: str, session: AsyncSession, ctx: TaskContext) -> str:
        await insert(session, name)
        await asyncio.sleep(0)
        return f"{name} {ctx.attempt}"

    start(pool=pool, concurrency=3)
    handles = note.enqueue_many({"name": name} for name in "abc")

    assert [handle.result(PATIENCE_S) for handle in handles] == ["a 0", "b 0", "c 0"]
    assert sorted(rows(engine, "notes")) == [("a",), ("b",), ("c",)]
    assert len(rows(engine, "conquiet_inbox")) == 3
    assert sorted(row[1] for row in rows(engine, "conquiet_task_results")) == ['"a 0"', '"b 0"', '"c 0"']


def test_of_an_attempt_that_fails_nothing_is_committed(app: TaskApp, engine: Engine, start: Start) -> None:
    @app.task(max_retries=3, retry=QUICK)
    async def note(session: AsyncSession, ctx: TaskContext) -> int | Retry:
        await insert(session, f"attempt {ctx.attempt}")
        if ctx.attempt == 0:
            raise OSError("no")
        if ctx.attempt == 1:
            return Retry(0, "not yet")
        return ctx.attempt

    start()

    assert note.enqueue().result(PATIENCE_S) == 2
    assert rows(engine, "notes") == [("attempt 2",)]
    assert len(rows(engine, "conquiet_inbox")) == 1


def test_what_was_committed_by_a_worker_that_died_is_not_run_again_and_has_its_result(
    app: TaskApp, engine: Engine, start: Start
) -> None:
    @app.task(max_retries=0)
    async def note(session: AsyncSession) -> int:
        await insert(session, "once")
        return 7

    worker = start()
    handle = note.enqueue()
    handle.result(PATIENCE_S)
    worker.stop()
    worker.join()
    # As if its worker had died before the ack, at its last attempt.
    keys = app.keys("default")
    app.client.delete(keys.record(handle.id))
    envelope = app.envelope(note.call())
    envelope.id = handle.id
    app.send_envelopes([(envelope, note.options)])
    scripts.settle_and_read(app.client, keys, "dead", (), count=1, max_bytes=1 << 20)
    scripts.take_over(app.client, keys, dead=["dead"])
    start()

    assert handle.result(PATIENCE_S) == 7
    assert rows(engine, "notes") == [("once",)]


def test_all_loops_of_a_worker_share_the_event_loop_of_the_engine(app: TaskApp, start: Start) -> None:
    threads: set[int] = set()

    @app.task
    async def note(session: AsyncSession) -> str:
        threads.add(threading.get_ident())
        await session.execute(text("SELECT 1"))
        return threading.current_thread().name

    start(concurrency=4)

    handles = note.enqueue_many({} for _ in range(20))
    assert {handle.result(PATIENCE_S) for handle in handles} == {"conquiet-event-loop"}
    assert len(threads) == 1


def test_a_soft_time_limit_and_a_revocation_roll_back(app: TaskApp, engine: Engine, start: Start) -> None:
    begun = threading.Event()

    @app.task(max_retries=0)
    async def long(session: AsyncSession) -> None:
        await insert(session, "long")
        begun.set()
        await asyncio.sleep(PATIENCE_S)

    start()
    limited = long.with_options(soft_time_limit_s=0.05).enqueue()
    with pytest.raises(TaskFailedError, match=SoftTimeLimitError.__name__):
        limited.result(PATIENCE_S)
    begun.clear()
    handle = long.enqueue()
    eventually(begun.is_set)
    handle.revoke(terminate=True)

    with pytest.raises(TaskFailedError, match="revoked"):
        handle.result(PATIENCE_S)
    assert rows(engine, "notes") == []
    assert rows(engine, "conquiet_inbox") == []


def test_both_kinds_of_sessions_in_one_app(
    server_url: str, path: Path, engine: Engine, async_engine: AsyncEngine
) -> None:
    with TaskApp(server_url, database=engine, namespace=f"tasks-{uuid.uuid4().hex[:10]}") as app:
        app.async_engine = async_engine

        @app.task
        async def awaiting(session: AsyncSession) -> str:
            await insert(session, "awaiting")
            return "awaiting"

        @app.task
        def plain(session: DbSession) -> str:
            session.execute(text("INSERT INTO notes VALUES ('plain')"))
            return "plain"

        with Worker(app, WorkerConfig(concurrency=2, pool="thread")):
            handles = [awaiting.enqueue(), plain.enqueue()]

            assert [handle.result(PATIENCE_S) for handle in handles] == ["awaiting", "plain"]
    assert sorted(rows(engine, "notes")) == [("awaiting",), ("plain",)]


@pytest.mark.parametrize(
    ("url", "is_plain", "awaits"),
    [
        ("sqlite:///x.db", True, False),
        ("sqlite+aiosqlite:///x.db", False, True),
        ("postgresql+psycopg://db/shop", True, True),
    ],
)
def test_the_driver_of_a_url_says_which_sessions_there_are(url: str, is_plain: bool, awaits: bool) -> None:
    app = TaskApp("redis://nowhere", database=url)

    assert (app.engine is not None, app.async_engine is not None) == (is_plain, awaits)


def test_a_session_of_the_wrong_kind_is_refused_with_what_to_do(app: TaskApp, engine: Engine) -> None:
    with pytest.raises(TypeError, match="let it take an AsyncSession"):

        @app.task
        async def awaiting(session: DbSession) -> None: ...

    with pytest.raises(TypeError, match="make it an `async def`"):

        @app.task
        def plain(session: AsyncSession) -> None: ...

    with TaskApp(app.settings, database=engine) as of_engine:

        @of_engine.task
        async def note(session: AsyncSession) -> None: ...

        worker = Worker(of_engine, WorkerConfig(concurrency=1, pool="thread"))
        with pytest.raises(SettingsError, match="give the TaskApp an AsyncEngine"), worker:
            worker.join()
