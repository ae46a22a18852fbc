"""A chaos run of tasks from its set-up to its findings."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import redis
from sqlalchemy import func, select

from conquiet import Inbox
from conquiet.tasks import SqlResults
from tests.chaos import task_findings
from tests.chaos.crew import Crew
from tests.chaos.database import Database
from tests.chaos.plan import effects
from tests.chaos.run import any_database
from tests.chaos.servers import AofServer
from tests.chaos.task_app import RUNS
from tests.chaos.task_figures import TaskFigures
from tests.chaos.task_plan import TaskPlan, TaskWorkerOrder
from tests.chaos.task_sender import TaskSender
from tests.chaos.task_trouble import TaskTrouble
from tests.chaos.worker import ROW_LOCKED, SKIPPED, UNAVAILABLE
from tests.eventually import eventually
from tests.services import Client

_LOGGED = {
    "skipped": SKIPPED,
    "rows_locked": ROW_LOCKED,
    "unavailable": UNAVAILABLE,
    "taken_over": "is taken over: worker",
    "fenced": "was not pending here any more",
    "begun_anew": "begins anew:",
}


def run_task_chaos(plan: TaskPlan) -> TaskFigures:
    """Run to the end; nothing that was started outlives this call."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="conquiet-chaos-")))
        server = stack.enter_context(AofServer(directory))
        url = stack.enter_context(any_database(directory))
        db = Database(url)
        effects.create(db.engine)
        # A worker that begins as the database is read-only finds its tables, or ends.
        Inbox().create_table(db.engine)
        SqlResults().create_table(db.engine)
        client = stack.enter_context(redis.Redis.from_url(server.url, decode_responses=True))
        order = TaskWorkerOrder(url=server.url, database=url, name="", seed=plan.seed)
        rng = random.Random(plan.seed)
        (directory / "logs").mkdir()
        crew = stack.enter_context(
            Crew(order, size=plan.workers, directory=directory / "logs", rng=rng, may_kill_themselves=True)
        )
        figures = TaskFigures(plan=plan, database=db.engine.dialect.name)
        trouble = TaskTrouble(crew, server, db, rng)
        sender = _make_noise_and_drain(figures, trouble, crew, server.url, client)
        _find(figures, sender, crew, client, db)
    return figures


def _make_noise_and_drain(
    figures: TaskFigures, trouble: TaskTrouble, crew: Crew, url: str, client: Client
) -> TaskSender:
    started = time.monotonic()
    crew.fill_up()
    with TaskSender(url, figures.plan) as sender:
        trouble.make(figures.plan, sender)
        figures.noisy_s = time.monotonic() - started
        try:
            _drain(sender, crew, client)
        except AssertionError as stalled:
            figures.unfinished.append(f"(sent, backlog, events): {stalled}")
    figures.drained_s = time.monotonic() - started - figures.noisy_s
    figures.trouble.update(trouble.counts)
    crew.leave()
    return sender


def _drain(sender: TaskSender, crew: Crew, client: Client) -> None:
    """Until everything is finished; fails when nothing has changed for long."""

    def is_done() -> bool:
        crew.look_after()
        crew.fill_up()
        return sender.is_done and not any(task_findings.left_to_do(client))

    def progress() -> tuple[int, ...]:
        return sender.count, *task_findings.progress(client)

    eventually(is_done, every_s=0.1, progress=progress)


def _find(figures: TaskFigures, sender: TaskSender, crew: Crew, client: Client, db: Database) -> None:
    sent = sender.sent
    figures.sent, figures.chords = len(sent.tasks), len(sent.chords)
    figures.failed_sends, figures.repeated_sends = sender.failed, sender.repeated
    found, rows = task_findings.records(client, sent), task_findings.count_rows(db.engine)
    letters = task_findings.dead_letters(client)
    figures.states.update(str(record.state) for record in found.values())
    figures.reasons.update(
        _reason(record.error) for record in found.values() if record.state == "dead_lettered"
    )
    _count_effects(figures, db)
    figures.ran_again = sum(int(count) > 1 for count in client.hvals(RUNS))
    for name, count in zip(_LOGGED, crew.count_logged(*_LOGGED.values()), strict=True):
        setattr(figures, name, count)
    figures.unfinished += task_findings.left_to_do(client)
    if figures.sent < figures.plan.tasks:
        figures.unfinished.append(f"{figures.sent} of {figures.plan.tasks} tasks were sent")
    figures.violations += [
        *sender.problems,
        *crew.problems,
        *task_findings.broken(sent, found, rows, letters),
    ]
    if not figures.unfinished:
        figures.violations += task_findings.left_behind(client, killed=crew.killed)
    if figures.violations or figures.unfinished:
        print(*crew.tails(), sep="\n")


def _count_effects(figures: TaskFigures, db: Database) -> None:
    counted = select(effects.c.attempt, func.count()).group_by(effects.c.attempt)
    with db.engine.connect() as connection:
        attempts: Counter[int] = Counter(dict(map(tuple, connection.execute(counted))))
    figures.effects, figures.late_effects = attempts.total(), attempts.total() - attempts[1]
    figures.highest_attempt = max(attempts, default=0)


def _reason(error: str | None) -> str:
    """The class of an error, or that another task has failed."""
    text = str(error)
    is_after = "of its group failed" in text or "a task before it" in text
    return "after one that failed" if is_after else text.partition(":")[0]
