"""The app of a chaos run: tasks with effects, coroutines, tasks that always fail, and what follows."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

from sqlalchemy import Engine, insert

from conquiet import DbSession
from conquiet.tasks import Retry, RetryPolicy, TaskApp, TaskContext, TaskOptions
from tests.chaos.plan import INBOX_LOCK_S, effects, temper_of
from tests.chaos.task_plan import DB, MAX_RETRIES, NAMESPACE, NAP, duration_s, is_deadly
from tests.chaos.worker import PlannedError, TellingInbox

#: How often each task without a session has begun, and of those whose process was killed, at which attempt.
RUNS = f"{NAMESPACE}:runs"

# Nobody asks for the row's id: without RETURNING the insert costs less.
_insert_effect = insert(effects).inline()


class WrongResultsError(Exception):
    """The body of a chord got other results than those of its members, or in another order."""


def make_app(url: str, engine: Engine | None, seed: int) -> TaskApp:
    """The app, as workers and the sender have it."""
    policy = RetryPolicy(base_delay_ms=20, max_delay_ms=300, never_on=(WrongResultsError,))
    defaults = TaskOptions(queue=DB, max_retries=MAX_RETRIES, retry=policy)
    app = TaskApp(url, database=engine, namespace=NAMESPACE, defaults=defaults)
    app.inbox = TellingInbox(lock_timeout_s=INBOX_LOCK_S)

    def work(key: str, number: int, session: DbSession, ctx: TaskContext) -> Retry | None:
        temper = temper_of(seed, key, number) if ctx.attempt == 0 else "calm"
        if temper == "raises_before":
            raise PlannedError
        row = {"key": key, "number": number, "entry_id": ctx.id, "attempt": ctx.attempt + 1}
        session.execute(_insert_effect, row)
        if temper == "raises_after":
            raise PlannedError
        if ctx.attempt == 0 and is_deadly(seed, number):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(duration_s(seed, number, mean_s=0.1))
        return Retry(delay_ms=30) if temper == "asks_for_retry" else None

    @app.task(name="effect")
    def effect(number: int, session: DbSession, ctx: TaskContext) -> Any:
        return work("effect", number, session, ctx) or number

    @app.task(name="nap", queue=NAP)
    async def nap(number: int, ctx: TaskContext) -> int:
        app.client.hincrby(RUNS, ctx.id, 1)
        await asyncio.sleep(duration_s(seed, number, mean_s=0.5))
        return number

    @app.task(name="doomed", max_retries=1)
    def doomed(number: int) -> None:
        raise PlannedError(f"doomed {number}")

    @app.task(name="join")
    def join(numbers: list[int], expected: list[int], session: DbSession, ctx: TaskContext) -> Any:
        if numbers != expected[:-1]:
            raise WrongResultsError(f"{numbers}, not {expected[:-1]}")
        return work("join", expected[-1], session, ctx) or expected[-1]

    @app.task(name="after")
    def after(before: int, number: int, session: DbSession, ctx: TaskContext) -> Any:
        return work("after", number, session, ctx) or [before, number]

    return app
