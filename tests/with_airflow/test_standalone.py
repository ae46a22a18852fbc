"""A real Airflow: bursts, a killed triggerer, killed tasks; nothing is lost and nothing happens twice."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from sqlalchemy import Engine, select, text

from conquiet import QueueConfig, RedisStreamsQueue
from tests.cli.processes import running
from tests.conftest import effects
from tests.eventually import eventually
from tests.services import database, open_engine, redis_server
from tests.with_airflow.standalone import Standalone, connection_to

# One after the other: each takes both cores to start.
pytestmark = pytest.mark.xdist_group("airflow")

BURST = 2_500
#: Two events of each message are stored one by one, fifty to a hundred a second.
WATCHED_BURST = {"sqlite": BURST, "postgres": 500}
_DAGS = [
    Path(__file__).with_name("standalone_dags.py"),
    Path(__file__).parents[2] / "dags" / "event_driven_drain.py",
]


@dataclass(frozen=True)
class Site:
    """One Airflow with its Redis and the application's database."""

    airflow: Standalone
    redis_url: str
    client: redis.Redis
    engine: Engine
    #: The ids of the burst that two watchers are told of; it goes on while other tests run.
    watched: list[str]

    def add(self, stream: str, first: int, count: int, **more: object) -> list[str]:
        """Enqueue orders, numbered from `first`."""
        config = QueueConfig(stream, "outside", "test")
        with RedisStreamsQueue.from_url(self.redis_url, config) as queue:
            numbers = range(first, first + count)
            return queue.enqueue_many({"order_id": n, "cents": n, **more} for n in numbers)

    def wait_until_done(self, stream: str, group: str) -> None:
        """Until the group has been given everything and has acked it, for as long as it gets on with that."""
        eventually(
            lambda: self.is_done(stream, group), every_s=0.2, progress=lambda: self._left_to_do(stream)
        )

    def shipped(self) -> list[str]:
        """The messages that a run has shipped."""
        with self.engine.connect() as connection:
            statement = select(effects.c.entry_id).where(effects.c.note == "shipped")
            return list(connection.scalars(statement))

    def is_done(self, stream: str, group: str) -> bool:
        """Whether the group has been given everything and has acked it."""
        return self._left_to_do(stream).get(group) == (0, 0)

    def _left_to_do(self, stream: str) -> dict[str, tuple[int, int]]:
        return {info["name"]: (info["lag"], info["pending"]) for info in self.client.xinfo_groups(stream)}


#: The first try of each bill dies in its transaction, and its process with it.
SHOP = """
import os, signal

from sqlalchemy import text

from conquiet import DbSession
from conquiet.tasks import TaskApp, TaskContext

app = TaskApp()


@app.task(name="shop.bill", queue="bills")
def bill(order_id: int, session: DbSession, ctx: TaskContext) -> dict[str, int]:
    session.execute(text("INSERT INTO bills_of_tasks VALUES (:id)"), {"id": order_id})
    if ctx.attempt == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"order_id": order_id, "attempt": ctx.attempt}


@app.task(name="shop.refuse", queue="bills")
def refuse() -> None:
    raise ValueError("no credit")
"""


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Airflow on each kind of metadata database in turn; started once for all tests of this file."""
    home = tmp_path_factory.mktemp("standalone")
    with ExitStack() as stack:
        metadata_url = stack.enter_context(database(request.param, home))
        application_url = stack.enter_context(database(request.param, home))
        redis_url = stack.enter_context(redis_server("valkey"))
        client = stack.enter_context(redis.Redis.from_url(redis_url, decode_responses=True))
        engine = open_engine(application_url)
        stack.callback(engine.dispose)
        effects.create(engine)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE bills (order_id INTEGER, cents INTEGER)"))
            connection.execute(text("CREATE TABLE bills_of_tasks (order_id INTEGER)"))
        connections = {"AIRFLOW_CONN_REDIS_STREAMS_DEFAULT": connection_to(redis_url, application_url)}
        airflow = Standalone(home / "airflow", metadata_url=metadata_url, environment=connections)
        for dag in _DAGS:
            shutil.copy(dag, airflow.dags)
        site = Site(stack.enter_context(airflow), redis_url, client, engine, [])
        site.watched.extend(site.add("burst", 1, WATCHED_BURST[request.param]))
        yield site


def test_a_burst_through_the_doorbell_ends_with_nothing_left_and_each_effect_once(site: Site):
    site.add("orders", 1, BURST)

    site.wait_until_done("orders", "billing")

    with site.engine.connect() as connection:
        billed = connection.scalars(text("SELECT order_id FROM bills ORDER BY order_id")).all()
    assert billed == list(range(1, BURST + 1))


def test_a_task_that_is_killed_in_a_message_is_retried_and_each_effect_happens_once(site: Site):
    ids = site.add("fatal", 1, 20) + site.add("fatal", 21, 1, is_fatal=True) + site.add("fatal", 22, 20)

    run_id = site.airflow.run_dag("dies_in_a_message")
    state = eventually(lambda: _end_of(site, "dies_in_a_message", run_id), every_s=0.3)

    assert state == "success"
    assert site.airflow.task_tries("dies_in_a_message", run_id, "drain") == 2
    assert site.airflow.task_tries("dies_in_a_message", run_id, "metadata_database_is_refused") == 1
    assert site.is_done("fatal", "billing")
    with site.engine.connect() as connection:
        statement = select(effects.c.entry_id).where(effects.c.note != "shipped")
        assert sorted(connection.scalars(statement)) == sorted(ids)


def _end_of(site: Site, dag_id: str, run_id: str) -> str | None:
    state = site.airflow.run_state(dag_id, run_id)
    return state if state in ("success", "failed") else None


def test_the_message_trigger_loses_nothing_when_the_triggerer_is_killed_in_the_middle(site: Site):
    ids = site.add("killed", 1, 300)
    eventually(lambda: site.airflow.events_stored("told_of_killed") >= 50, every_s=0.1)
    site.airflow.kill_triggerer()
    stored = site.airflow.events_stored("told_of_killed")
    ids += site.add("killed", 301, 50)
    site.airflow.start_triggerer()

    site.wait_until_done("killed", "told_of_killed")

    assert stored < 300
    assert {event["id"] for event in site.airflow.event_payloads("told_of_killed")} == set(ids)


def test_every_message_reaches_a_run_that_succeeds_though_one_fails_and_the_triggerer_is_killed(site: Site):
    ids = site.add("parcels", 1, 30) + site.add("parcels", 31, 1, is_fatal=True) + site.add("parcels", 32, 29)

    eventually(lambda: site.shipped(), every_s=0.2)
    site.airflow.kill_triggerer()
    site.airflow.start_triggerer()
    site.wait_until_done("parcels", "shipping")

    # Runs that overlap, or are taken for dead, may ship twice; none is missing, and no message is left.
    assert set(site.shipped()) == set(ids)


def test_a_task_of_conquiet_is_waited_for_in_the_triggerer_and_its_states_are_in_the_log(
    site: Site, tmp_path: Path
):
    run_id = site.airflow.run_dag("bills_by_task")

    def states() -> dict[str, str | None]:
        return site.airflow.task_states("bills_by_task", run_id)

    # No worker runs: both wait without a slot, and no triggerer has them in its memory alone.
    eventually(lambda: states() == {"bill": "deferred", "check": None, "refuse": "deferred"}, every_s=0.3)
    site.airflow.kill_triggerer()
    (tmp_path / "shop.py").write_text(SHOP)
    urls = {
        "CONQUIET_REDIS_URL": site.redis_url,
        "CONQUIET_DATABASE_URL": site.engine.url.render_as_string(hide_password=False),
    }
    with running("worker", tmp_path / "shop.py:app", "--queues", "bills", "--concurrency", 1, **urls):
        site.airflow.start_triggerer()
        eventually(lambda: _end_of(site, "bills_by_task", run_id), every_s=0.3)

    assert states() == {"bill": "success", "check": "success", "refuse": "failed"}
    log = site.airflow.task_log("bills_by_task", run_id, "bill")
    for words in ("enqueued task", "is succeeded, attempt 1, its result has"):
        assert words in log
    assert "ValueError: no credit" in site.airflow.task_log("bills_by_task", run_id, "refuse")
    with site.engine.connect() as connection:
        assert connection.scalars(text("SELECT order_id FROM bills_of_tasks")).all() == [7]


def test_two_watchers_lose_nothing_in_a_burst(site: Site):
    groups = [str(eventually(lambda: _second_group(site), every_s=0.2)), "told_of_burst"]

    for group in groups:
        site.wait_until_done("burst", group)

    # A set: what was on its way when the triggerer was killed is told twice.
    for asset in ("told_of_burst", "told_of_burst_too"):
        assert {event["id"] for event in site.airflow.event_payloads(asset)} == set(site.watched)


def _second_group(site: Site) -> str | None:
    # The one that its trigger made from its arguments.
    names = [info["name"] for info in site.client.xinfo_groups("burst")]
    return next((name for name in names if name.startswith("airflow-")), None)
