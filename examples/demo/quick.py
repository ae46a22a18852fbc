"""The short demo: plain workers on a private server and SQLite; one is killed, two others finish its work."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import redis
from sqlalchemy import Engine, delete, func, select

from conquiet.consume import dead_letter_stream
from conquiet.embedded import EmbeddedServer
from examples.demo.crash import Killed, kill_in_the_middle
from examples.demo.orders import (
    CLAIM_IDLE_MS,
    GROUP,
    STREAM,
    bookings,
    count_booked,
    make_orders,
    open_database,
    open_queue,
)
from examples.demo.processes import Child, Processes
from examples.demo.proof import Counts, Proof, Total, handled_by
from examples.demo.requirements import ROOT
from examples.demo.result import Plan, Result
from examples.demo.stages import Stages
from examples.demo.watcher import Backlog, Timeline, Watcher, read_backlog

_KILL_AT = 0.4
_WORKER_S = 900.0


def run_quick(plan: Plan, stages: Stages, timeline: Timeline) -> Result:
    """Enqueue, drain, kill, claim, drain; then count."""
    database = str(plan.directory / "orders.db")
    engine = open_database(database)
    bookings.create(engine)
    with (
        EmbeddedServer(dir=plan.directory / "server", appendonly=True) as server,
        redis.Redis.from_url(server.url, decode_responses=True) as client,
        Processes(plan.directory / "logs", os.environ) as processes,
    ):
        workers = _Workers(plan, processes, stages, server.url, database)
        timeline.begin_again()
        with Watcher(lambda: (*_read_state(engine, client), {}), timeline):
            sent = _enqueue(plan, stages, server.url)
            killed, reports = workers.drain_with_a_crash(partial(_read_state, engine, client), timeline)
        if plan.is_one_lost:
            with engine.begin() as connection:
                connection.execute(delete(bookings).where(bookings.c.order_id == 1))
        return Result(timeline=timeline, killed=killed, proof=_proof(engine, client, sent, killed, reports))


class _Workers:
    """Starts workers one after the other."""

    def __init__(self, plan: Plan, processes: Processes, stages: Stages, url: str, database: str) -> None:
        self._plan = plan
        self._processes = processes
        self._stages = stages
        self._addresses = (url, database)

    def drain_with_a_crash(
        self, read_state: Callable[[], tuple[int, Backlog]], timeline: Timeline
    ) -> tuple[Killed, list[Mapping[str, Any]]]:
        """What was killed, and the reports of those who finished its work."""
        with self._stages.stage("worker-1 drains, and is killed") as stage:
            child = self._start("drain", "worker-1")
            killed = kill_in_the_middle(child.pid, read_state, from_rows=int(self._plan.orders * _KILL_AT))
            timeline.mark_crash(killed.at)
            stage.report(str(killed))
        with self._stages.stage("worker-2 claims what it left") as stage:
            time.sleep(CLAIM_IDLE_MS / 1000)
            claimed = self._finish(self._start("claim", "worker-2"))
            stage.report(f"{claimed['read']} claimed, {claimed['skipped']} were done: the inbox skipped them")
        with self._stages.stage("worker-3 drains the rest") as stage:
            drained = self._finish(self._start("drain", "worker-3"))
            stage.report(f"{drained['handled']:,} handled")
        return killed, [claimed, drained]

    def _start(self, task: str, consumer: str) -> Child:
        command = [sys.executable, "-m", "examples.demo.worker", task, *self._addresses, consumer]
        return self._processes.start(
            consumer, [*command, self._plan.directory / f"{consumer}.json"], cwd=ROOT
        )

    def _finish(self, child: Child) -> Mapping[str, Any]:
        self._processes.wait_until(lambda: not child.is_running, goal=child.name, timeout_s=_WORKER_S)
        child.wait(_WORKER_S)
        report: dict[str, Any] = json.loads((self._plan.directory / f"{child.name}.json").read_text())
        return report


def _enqueue(plan: Plan, stages: Stages, url: str) -> Total:
    orders = make_orders(plan.orders)
    with stages.stage("orders are enqueued") as stage, open_queue(url, "shop") as queue:
        queue.enqueue_many(orders)
        stage.report(f"{len(orders):,} orders")
    return Total(len(orders), sum(order["cents"] for order in orders))


def _read_state(engine: Engine, client: redis.Redis) -> tuple[int, Backlog]:
    return count_booked(engine), read_backlog(client, (STREAM,), GROUP)


def _proof(
    engine: Engine, client: redis.Redis, sent: Total, killed: Killed, reports: list[Mapping[str, Any]]
) -> Proof:
    backlog = read_backlog(client, (STREAM,), GROUP)
    columns = bookings.c
    statement = select(
        func.count(), func.count(columns.order_id.distinct()), func.coalesce(func.sum(columns.cents), 0)
    )
    with engine.connect() as connection:
        rows, orders, cents = connection.execute(statement).one()
        handled = handled_by(connection, (STREAM,), GROUP)
    deliveries = killed.backlog.delivered + sum(report["read"] for report in reports)
    counts = Counts(
        title="orders",
        backlog=backlog,
        handled=handled,
        effects=rows,
        redelivered=deliveries - backlog.enqueued,
        skipped=sum(report["skipped"] for report in reports),
        dead_letters=int(client.xlen(dead_letter_stream(STREAM))),
    )
    return Proof(counts=(counts,), sent=sent, kept={"in the database:": Total(orders, cents)})
