"""The scene of one crash in the task layer: an app with queues and a database of its own, and no threads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Column, Integer, MetaData, String, Table, insert
from sqlalchemy.ext.asyncio import AsyncSession

from conquiet import DbSession, DrainLimits
from conquiet.consume.engine import DrainLoop
from conquiet.consume.outcome import Settlement
from conquiet.errors import QueueError
from conquiet.settings import Settings
from conquiet.tasks import DirectoryPayloads, ProcessDiedError, RetryPolicy, TaskApp, TaskContext, scripts
from conquiet.tasks.batch import TaskBatch
from conquiet.tasks.blocking_reader import BlockingReader, Found
from conquiet.tasks.canvas.follow_ups import FollowUps
from conquiet.tasks.channel import TaskChannel
from conquiet.tasks.handling import Execution, TaskHandling
from conquiet.tasks.keys import QueueKeys
from conquiet.tasks.message import TaskMessage
from conquiet.tasks.worker.child import ChildExecution
from conquiet.tasks.worker.config import WorkerConfig
from conquiet.tasks.worker.execution import ThreadExecution
from conquiet.tasks.worker.guard import DeadChild, TaskGuard
from conquiet.tasks.worker.slot import RunningSlot, RunningTask
from conquiet.testing.crash_points import CrashPoints
from tests.crashes.site import Address, engine_at, handler_engine

QUEUES = ("default", "other")
_POLICY = RetryPolicy(backoff="fixed", base_delay_ms=0)

#: One row per effect; nothing is unique but `id`, so that doubles can be seen.
effects = Table("effects", MetaData(), Column("id", Integer, primary_key=True), Column("name", String(32)))


#: A child of a process pool, and its consumer.
CHILD = "child"
CONSUMER = f"{CHILD}.0.a"
_CONFIG = WorkerConfig(queues=QUEUES, concurrency=1, heartbeat_ttl_s=3_600)


class PlannedError(Exception):
    """The failure of a task that a scenario wants."""


class LateReader(BlockingReader):
    """Something happens between the read that finds nothing and the wait."""

    before_wait: Callable[[], None]

    def wait(self, queues: Sequence[QueueKeys], wait_ms: int) -> list[Found]:
        """As `BlockingReader.wait`."""
        self.before_wait()
        return super().wait(queues, wait_ms)


class Rounds(TaskChannel):
    """A channel that stops its loop with the last round; a round is one read and what comes of it."""

    is_last: Callable[[], bool]
    loop: DrainLoop[TaskMessage]

    def call_before_wait(self, call: Callable[[], None]) -> None:
        """Have something happen before each wait."""
        self._reader = reader = LateReader(self._client, self.consumer)
        reader.before_wait = call

    def read(self, settled: Sequence[Settlement], size: int, wait_ms: int | None) -> TaskBatch:
        """Called by the loop at the beginning of a round."""
        if self.is_last():
            self.loop.stop()
        return super().read(settled, size, 1)


class CountedExecution(ChildExecution):
    """A child's, which can die before and after its parent sees what it runs."""

    points: CrashPoints | None = None

    def begin(self, msg: TaskMessage, consumer: str, hard_limit_s: float | None) -> None:
        """As `Execution.begin`."""
        super().begin(msg, consumer, hard_limit_s)
        if self.points is not None:
            self.points.pass_step("slot begin")

    def end(self) -> None:
        """As `Execution.end`."""
        super().end()
        if self.points is not None:
            self.points.pass_step("slot end")


class CountedPayloads(DirectoryPayloads):
    """Files; a process can die before and after each of them is written or deleted."""

    def __init__(self, site: TaskSite, directory: Path) -> None:
        super().__init__(directory)
        self._site, self.directory = site, directory
        self.create()

    def put(self, key: str, content: bytes) -> None:
        """As `PayloadStore.put`."""
        self._pass("store put begins")
        super().put(key, content)
        self._pass("store put")

    def delete(self, key: str) -> None:
        """As `PayloadStore.delete`."""
        super().delete(key)
        self._pass("store delete")

    def names(self) -> set[str]:
        """The keys of all content."""
        return {path.name for path in self.directory.glob("*/*") if path.is_file()}

    def _pass(self, step: str) -> None:
        if self._site.points is not None:
            self._site.points.pass_step(step)


def awaiting(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same task as an `async def` one, which takes an `AsyncSession`."""

    @functools.wraps(function)
    async def call(session: AsyncSession, **arguments: Any) -> Any:
        return await session.run_sync(lambda plain: function(session=plain, **arguments))

    call.__annotations__ = {**function.__annotations__, "session": AsyncSession}
    return call


class TaskSite:
    """An app, opened anew by each process of a crash in turn."""

    def __init__(self, address: Address) -> None:
        self.engine, self.handler_engine = engine_at(address.database), handler_engine(address)
        self.app = app = TaskApp(Settings(redis_url=address.url), database=self.handler_engine)
        of_kind: Callable[[Any], Any] = awaiting if address.is_async else lambda function: function

        @app.task(name="effect", max_retries=9, retry=_POLICY)
        @of_kind
        def effect(
            name: str, session: DbSession, ctx: TaskContext, fails: int = 0, stops: bool = False
        ) -> str:
            session.execute(insert(effects), {"name": name})
            if stops and ctx.worker == "worker" and self.loop is not None:
                self.loop.stop()
            if ctx.attempt < fails:
                raise PlannedError
            return name

        @app.task(name="never", max_retries=0)
        def never() -> None:
            raise PlannedError

        @app.task(name="only_once", max_retries=0)
        @of_kind
        def only_once(name: str, session: DbSession) -> str:
            session.execute(insert(effects), {"name": name})
            return name

        @app.task(name="join", queue="other", max_retries=9, retry=_POLICY)
        @of_kind
        def join(names: list[str], session: DbSession) -> str:
            session.execute(insert(effects), {"name": "join"})
            return "+".join(names)

        @app.task(name="scheduled", max_retries=9, retry=_POLICY)
        @of_kind
        def scheduled(session: DbSession, ctx: TaskContext) -> None:
            session.execute(insert(effects), {"name": ctx.id.removeprefix("beat:")})

        @app.task(name="after", max_retries=9, retry=_POLICY)
        @of_kind
        def after(name: str, session: DbSession) -> str:
            session.execute(insert(effects), {"name": "after"})
            return f"after {name}"

        @app.task(name="large", max_retries=9, retry=_POLICY)
        @of_kind
        def large(text: str, session: DbSession) -> str:
            session.execute(insert(effects), {"name": f"large {text[:1]}"})
            return text

        self.large = large
        self.effect, self.never, self.join, self.after = effect, never, join, after
        self.only_once = only_once

    def open(self, address: Address, *, client_name: str) -> None:
        """Be a process that starts: new connections, and nothing that another one has remembered."""
        separator = "&" if "?" in address.url else "?"
        self.app.use_server(f"{address.url}{separator}client_name={client_name}")
        self.app.namespace = address.stream.replace(":", "-")
        self.app.schedules.declared.clear()
        self.app.payload_store = CountedPayloads(self, Path(f"{address.database}.payloads"))
        self.engine.connect().close()
        self.loop: DrainLoop[TaskMessage] | None = None
        #: Of a child: where its parent sees what it runs, and its points.
        self.slot: RunningSlot | None = None
        self.points: CrashPoints | None = None
        #: What happens between a read that finds nothing and the wait after it.
        self.before_wait: Callable[[], None] = lambda: None

    def create_tables(self) -> None:
        """Create what an application creates before it consumes."""
        effects.create(self.engine)
        with self._handling("prepare"):
            """Its tables are there now."""

    def entry_ids(self) -> list[str]:
        """What is in the streams."""
        client: Any = self.app.client
        pipeline = client.pipeline(transaction=False)
        for queue in QUEUES:
            for stream in self.app.keys(queue).streams:
                pipeline.xrange(stream)
        return [entry_id.decode() for entries in pipeline.execute() for entry_id, _ in entries]

    def work(
        self, consumer: str, *, is_last_round: Callable[[], bool], execution: Execution | None = None
    ) -> None:
        """Do what a worker's loop does, without its threads."""
        channel = Rounds(
            self.app.client,
            [self.app.keys(queue) for queue in QUEUES],
            consumer,
            self.app,
            prefetch=2,
            follow=FollowUps(self.app).perform_or_keep,
        )
        channel.is_last = is_last_round
        channel.call_before_wait(lambda: self.before_wait())
        limits = DrainLimits(max_messages=None, idle_ms=None, max_failures=None)
        with self._handling(consumer, execution) as handling:
            self.loop = channel.loop = DrainLoop(channel, handling, limits)
            channel.loop.run()

    def work_rounds(self, rounds: int) -> None:
        """Work some rounds; after an error of Redis begin once more under the next name, as a worker does."""
        for consumer in ("worker", "worker-again"):
            left = iter(range(rounds))
            try:
                self.work(consumer, is_last_round=lambda left=left: next(left, None) is None)  # type: ignore[misc]
            except QueueError:
                self.take_over("worker")
            else:
                return

    def work_as_child(self, rounds: int) -> None:
        """Work some rounds as a child of the process pool does; an error of Redis ends it."""
        assert self.slot is not None
        for queue in QUEUES:
            scripts.heartbeat(self.app.client, self.app.keys(queue), [CONSUMER], _CONFIG.lease_ms)
        left = iter(range(rounds))
        execution = CountedExecution(self.slot, _CONFIG, lambda: None)
        execution.points = self.points
        self.work(CONSUMER, is_last_round=lambda: next(left, None) is None, execution=execution)

    def settle_as_parent(self, running: RunningTask | None) -> None:
        """Do what the parent of a child that was killed does."""
        guard = TaskGuard(self.app, _CONFIG, running=lambda: ())
        guard.start()
        guard.died(DeadChild(CHILD, running, ProcessDiedError("was killed by signal 9 (SIGKILL)")))
        guard.stop()

    def take_over(self, *dead: str) -> None:
        """Free what these have pending, and do what they have left to follow."""
        for queue in QUEUES:
            scripts.take_over(self.app.client, self.app.keys(queue), dead=dead)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.app.close()
        self.engine.dispose()

    def _handling(self, consumer: str, execution: Execution | None = None) -> TaskHandling:
        def write_record(msg: TaskMessage, fields: Any) -> None:
            """Nothing: no task of a scenario reports its progress."""

        return TaskHandling(
            self.app, consumer, write_record=write_record, execution=execution or ThreadExecution()
        )
