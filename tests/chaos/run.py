"""A chaos run from its set-up to its findings."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import redis
from sqlalchemy import Engine

from conquiet import Inbox
from conquiet.mq import TopicPolicies, Topics
from tests.chaos.crew import Crew
from tests.chaos.database import Database
from tests.chaos.effects import Effects, Sent, count_effects
from tests.chaos.figures import Figures
from tests.chaos.findings import (
    broken_by_streams,
    count_settled,
    left_behind,
    left_to_do,
    unfinished_messages,
)
from tests.chaos.plan import TOPIC, Plan, WorkerOrder, effects
from tests.chaos.sender import Sender
from tests.chaos.servers import ServerPair
from tests.chaos.trouble import Trouble
from tests.chaos.worker import ROW_LOCKED, SKIPPED, UNAVAILABLE
from tests.eventually import eventually
from tests.services import Client, database

#: Servers keep what a failover may lose, and little more: they are loaded again with every restart.
_POLICIES = TopicPolicies(retention_ms=30_000, trim_every_s=2)


def run_chaos(plan: Plan) -> Figures:
    """Run to the end; nothing that was started outlives this call."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="conquiet-chaos-")))
        servers = stack.enter_context(ServerPair(directory, plan))
        url = stack.enter_context(any_database(directory))
        db = Database(url)
        effects.create(db.engine)
        # A worker that begins as the database is read-only finds its table, or ends.
        Inbox().create_table(db.engine)
        client = stack.enter_context(redis.Redis.from_url(servers.url, decode_responses=True))
        Topics(client).create(TOPIC, plan.partitions, _POLICIES)
        order = WorkerOrder(url=servers.url, database=url, name="", seed=plan.seed)
        rng = random.Random(plan.seed)
        (directory / "logs").mkdir()
        crew = stack.enter_context(Crew(order, size=plan.workers, directory=directory / "logs", rng=rng))
        figures = Figures(plan=plan, database=db.engine.dialect.name)
        sender = _make_noise_and_drain(
            figures, Trouble(crew, servers, db, rng), crew, servers.url, client, db
        )
        _find(figures, sender, crew, servers, client, db.engine)
    return figures


def _make_noise_and_drain(
    figures: Figures, trouble: Trouble, crew: Crew, url: str, client: Client, db: Database
) -> Sender:
    plan = figures.plan
    started = time.monotonic()
    crew.fill_up()
    with Sender(url, plan) as sender:
        trouble.make(plan, sender)
        figures.noisy_s = time.monotonic() - started
        try:
            _drain(sender, crew, client, db.engine, plan)
        except AssertionError as stalled:
            figures.unfinished.append(f"(sent, committed, settled): {stalled}")
    figures.drained_s = time.monotonic() - started - figures.noisy_s
    figures.trouble.update(trouble.counts)
    crew.leave()
    return sender


def _find(
    figures: Figures, sender: Sender, crew: Crew, servers: ServerPair, client: Client, engine: Engine
) -> None:
    plan = figures.plan
    sent = Sent(entries=sender.sent, lost=servers.lost, first_entries=sender.first_entries)
    figures.sent, figures.failed_sends, figures.repeated_sends = (
        len(sender.sent),
        sender.failed,
        sender.repeated,
    )
    figures.lost_entries, figures.lost_for_good = sum(map(len, sent.lost.values())), len(sent.lost_for_good())
    found = Effects(engine, sent)
    figures.effects, figures.late_effects, figures.highest_attempt = (
        found.count,
        found.late,
        found.highest_attempt,
    )
    figures.lost_effects, figures.lost_out_of_order = found.of_lost, found.lost_out_of_order
    figures.doubled_by_failover = found.doubled_by_failover
    logged = crew.count_logged(SKIPPED, ROW_LOCKED, UNAVAILABLE)
    figures.skipped, figures.rows_locked, figures.unavailable = logged
    figures.unfinished += left_to_do(client, plan)
    if figures.sent != plan.messages and plan.send_for_s is None:
        figures.unfinished.append(f"{figures.sent} of {plan.messages} messages were sent")
    figures.violations += [
        *sender.problems,
        *crew.problems,
        *servers.problems,
        *sent.broken(),
        *found.broken(unfinished=unfinished_messages(client, plan)),
        *broken_by_streams(client, plan, sent=figures.sent - figures.lost_for_good),
    ]
    if not figures.unfinished:
        figures.violations += left_behind(client, plan)
    if figures.violations or figures.unfinished:
        print(*crew.tails(), sep="\n")


def _drain(sender: Sender, crew: Crew, client: Client, engine: Engine, plan: Plan) -> None:
    """Until everything is finished; fails when nothing was sent, committed or settled for long."""

    def is_done() -> bool:
        crew.look_after()
        crew.fill_up()
        return sender.is_done and not any(left_to_do(client, plan))

    def progress() -> tuple[int, ...]:
        return len(sender.sent), count_effects(engine), count_settled(client, plan)

    eventually(is_done, every_s=0.1, progress=progress)


@contextmanager
def any_database(directory: Path) -> Iterator[str]:
    """PostgreSQL where there is one, else SQLite."""
    with ExitStack() as stack:
        try:
            kind = "postgres" if find_spec("psycopg") else "sqlite"
            url = stack.enter_context(database(kind, directory))
        except pytest.skip.Exception:
            url = stack.enter_context(database("sqlite", directory))
        yield url
