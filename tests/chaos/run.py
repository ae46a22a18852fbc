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

from conquiet import EmbeddedServer
from conquiet.mq import Topics
from tests.chaos.crew import Crew
from tests.chaos.findings import (
    Figures,
    broken_by_effects,
    broken_by_streams,
    count_effects,
    count_late_effects,
    count_settled,
    left_behind,
    left_to_do,
    unfinished_messages,
)
from tests.chaos.plan import TOPIC, Plan, WorkerOrder, effects, open_database
from tests.chaos.sender import Sender
from tests.chaos.trouble import Trouble
from tests.eventually import eventually
from tests.services import database


def run_chaos(plan: Plan) -> Figures:
    """Run to the end; nothing that was started outlives this call."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="conquiet-chaos-")))
        server = stack.enter_context(
            EmbeddedServer(dir=directory / "server", appendonly=True, appendfsync="always")
        )
        url = stack.enter_context(_any_database(directory))
        engine = open_database(url)
        stack.callback(engine.dispose)
        effects.create(engine)
        client = stack.enter_context(redis.Redis.from_url(server.url, decode_responses=True))
        Topics(client).create(TOPIC, plan.partitions)
        order = WorkerOrder(url=server.url, database=url, name="", seed=plan.seed)
        rng = random.Random(plan.seed)
        (directory / "logs").mkdir()
        crew = stack.enter_context(Crew(order, size=plan.workers, directory=directory / "logs", rng=rng))
        figures = Figures(plan=plan, database=engine.dialect.name)
        _run(figures, Trouble(crew, server, rng), crew, server.url, client, engine)
    return figures


def _run(
    figures: Figures, trouble: Trouble, crew: Crew, url: str, client: redis.Redis, engine: Engine
) -> None:
    plan = figures.plan
    started = time.monotonic()
    crew.fill_up()
    with Sender(url, plan) as sender:
        trouble.make(plan.noisy_s)
        figures.noisy_s = time.monotonic() - started
        try:
            _drain(sender, crew, client, engine, plan)
        except AssertionError as stalled:
            figures.unfinished.append(f"(sent, committed, settled): {stalled}")
    figures.drained_s = time.monotonic() - started - figures.noisy_s
    crew.leave()
    figures.sent, figures.failed_sends, figures.repeated_sends = (
        len(sender.sent),
        sender.failed,
        sender.repeated,
    )
    figures.effects, figures.late_effects = count_effects(engine), count_late_effects(engine)
    figures.trouble.update(trouble.counts)
    figures.skipped = crew.skipped()
    figures.unfinished += left_to_do(client, plan)
    if figures.sent != plan.messages:
        figures.unfinished.append(f"{figures.sent} of {plan.messages} messages were sent")
    figures.violations += [
        *sender.problems,
        *crew.problems,
        *broken_by_effects(engine, sender.sent, unfinished=unfinished_messages(client, plan)),
        *broken_by_streams(client, plan, sent=figures.sent),
    ]
    if not figures.unfinished:
        figures.violations += left_behind(client, plan)
    if figures.violations or figures.unfinished:
        print(*crew.tails(), sep="\n")


def _drain(sender: Sender, crew: Crew, client: redis.Redis, engine: Engine, plan: Plan) -> None:
    """Until everything is finished; fails when nothing was sent, committed or settled for long."""

    def is_done() -> bool:
        crew.look_after()
        crew.fill_up()
        return sender.is_done and not any(left_to_do(client, plan))

    def progress() -> tuple[int, ...]:
        return len(sender.sent), count_effects(engine), count_settled(client, plan)

    eventually(is_done, every_s=0.1, progress=progress)


@contextmanager
def _any_database(directory: Path) -> Iterator[str]:
    """PostgreSQL where there is one, else SQLite."""
    with ExitStack() as stack:
        try:
            kind = "postgres" if find_spec("psycopg") else "sqlite"
            url = stack.enter_context(database(kind, directory))
        except pytest.skip.Exception:
            url = stack.enter_context(database("sqlite", directory))
        yield url
