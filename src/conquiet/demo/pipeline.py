"""The whole pipeline: Airflow enqueues and drains, a worker is killed, Spark sums up, Dagster drains."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from sqlalchemy import Engine, text

from conquiet.consume import quarantine_stream
from conquiet.demo.killing import Killed, kill_in_the_middle
from conquiet.demo.orders import open_database
from conquiet.demo.private_airflow import PrivateAirflow, airflow_settings
from conquiet.demo.processes import Child, Processes
from conquiet.demo.proof import Counts, Proof, Total, handled_by, sent_to
from conquiet.demo.requirements import check_java, checkout, program
from conquiet.demo.spark_settings import submit_environment
from conquiet.demo.stages import Stages
from conquiet.demo.story import Plan, Story
from conquiet.demo.watching import Backlog, Timeline, Watcher, look_at
from conquiet.embedded import EmbeddedServer
from conquiet.embedded.ports import choose_ports
from conquiet.errors import TopicError
from conquiet.mq import DeadLetters, Topics

# The names that the DAGs and the assets give to their places.
STREAM, GROUP = "shop-orders", "ledger"
TOPIC = "order-totals"
#: Who drains the topic: its group, and the table that it writes.
READERS = {
    "totals in Airflow": ("ledger", "order_totals"),
    "totals in Dagster": ("reports", "reported_totals"),
}
PIPELINE, RECOVERY = "order_pipeline", "claim_stale_shop_orders"

_KILL_AT = 0.4
_MIN_IDLE_MS = 1_000
_SPARK_S = 400.0
_DAGSTER_S = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where the pipeline runs."""

    root: Path
    dagster: Path
    server: EmbeddedServer
    client: redis.Redis
    engine: Engine
    processes: Processes
    airflow: PrivateAirflow

    def look(self) -> tuple[int, Backlog]:
        """Rows of the table of orders, and their stream."""
        return self.count("orders"), look_at(self.client, (STREAM,), GROUP)

    def look_at_all(self) -> tuple[int, Backlog, Mapping[str, Backlog]]:
        """The same, and the topic for each of its readers."""
        partitions = self.partitions()
        totals = {
            reader: look_at(self.client, partitions, group) for reader, (group, _table) in READERS.items()
        }
        return (*self.look(), totals)

    def partitions(self) -> tuple[str, ...]:
        """The streams of the topic, if it was made."""
        try:
            topic = Topics(self.client).open(TOPIC)
        except TopicError:
            return ()
        return tuple(topic.keys.stream(partition) for partition in topic.partitions)

    def count(self, table: str) -> int:
        """How many rows the table has, if it was made."""
        is_there = text("SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = :name")
        with self.engine.connect() as connection:
            if not connection.execute(is_there, {"name": table}).scalar_one():
                return 0
            return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())  # noqa: S608


def run_pipeline(plan: Plan, stages: Stages, timeline: Timeline) -> Story:
    """Set up, run every stage, count."""
    check_java()
    with _site(plan, stages) as site:
        timeline.begin_again()
        with Watcher(site.look_at_all, timeline):
            run_id = _orders_are_taken(site, stages, plan)
            killed, reports = _orders_are_kept(site, stages, timeline, run_id, plan)
            _totals_are_published(site, stages, run_id)
            _totals_are_kept(site, stages, run_id)
        if plan.is_one_lost:
            with site.engine.begin() as connection:
                connection.execute(text("DELETE FROM orders WHERE rowid = 1"))
        return Story(timeline=timeline, killed=killed, proof=_proof(site, killed, reports))


@contextmanager
def _site(plan: Plan, stages: Stages) -> Iterator[Site]:
    directory, root = plan.directory, checkout()
    airflow, dagster = program("airflow", "airflow"), program("dagster", "dagster")
    program("spark-submit", "pyspark")
    for name in ("airflow", "dagster", "spark"):
        (directory / name).mkdir()
    database = directory / "shop.db"
    engine = open_database(str(database))
    with (
        EmbeddedServer(dir=directory / "server", appendonly=True) as server,
        redis.Redis.from_url(server.url, decode_responses=True) as client,
    ):
        ports = choose_ports(2)
        environment = _environment(directory, server, f"sqlite:///{database}", ports)
        with Processes(directory / "logs", environment) as processes:
            private = PrivateAirflow(processes, directory / "airflow", port=ports[0], airflow=airflow)
            with stages.stage("Valkey, SQLite and Airflow start") as stage:
                engine.connect().close()
                stage.says(f"Valkey {server.version}; Airflow with scheduler, LocalExecutor, api-server")
                private.start([root / "dags" / f"{dag}.py" for dag in (PIPELINE, RECOVERY)])
            yield Site(
                root=root,
                dagster=dagster,
                server=server,
                client=client,
                engine=engine,
                processes=processes,
                airflow=private,
            )


def _environment(
    directory: Path, server: EmbeddedServer, database_url: str, ports: tuple[int, ...]
) -> dict[str, str]:
    """What a user would set: where the servers are, as connections and variables."""
    streams = {
        "conn_type": "redis_streams",
        "host": "127.0.0.1",
        "port": server.port,
        "extra": {"db_url": database_url},
    }
    # A shell that forbids bytecode makes every start compile everything anew.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {
        **inherited,
        **airflow_settings(directory / "airflow", api_port=ports[0], log_port=ports[1]),
        **submit_environment(directory / "spark"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "TMPDIR": str(directory),
        "AIRFLOW_CONN_REDIS_STREAMS_DEFAULT": json.dumps(streams),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "CONQUIET_REDIS_URL": server.url,
        "CONQUIET_DATABASE_URL": database_url,
        "DAGSTER_HOME": str(directory / "dagster"),
    }


def _orders_are_taken(site: Site, stages: Stages, plan: Plan) -> str:
    with stages.stage("Airflow enqueues orders") as stage:
        run_id = site.airflow.trigger(PIPELINE, {"count": plan.orders})
        site.airflow.wait_for_task(PIPELINE, run_id, "take_orders")
        stage.says(f"{look_at(site.client, (STREAM,), GROUP).enqueued:,} orders, run {run_id}")
    return run_id


def _orders_are_kept(
    site: Site, stages: Stages, timeline: Timeline, run_id: str, plan: Plan
) -> tuple[Killed, list[Mapping[str, Any]]]:
    airflow = site.airflow
    with stages.stage("Airflow drains them, and its worker is killed") as stage:
        # Often: it must be known before the drain is over.
        task = airflow.wait_for_task(PIPELINE, run_id, "keep_orders", state="running", every_s=0.05)
        killed = kill_in_the_middle(task["pid"], site.look, from_rows=int(plan.orders * _KILL_AT))
        timeline.mark_crash(killed.at)
        stage.says(str(killed))
        airflow.wait_for_task(PIPELINE, run_id, "keep_orders", state="up_for_retry")
    with stages.stage("the recovery DAG claims what it left") as stage:
        time.sleep(_MIN_IDLE_MS / 1000)
        recovery = airflow.trigger(RECOVERY, {"min_idle_ms": _MIN_IDLE_MS})
        airflow.wait_for_task(RECOVERY, recovery, "claim_stale")
        claimed = airflow.returned(RECOVERY, recovery, "claim_stale")
        stage.says(f"{claimed['read']} claimed, {claimed['skipped']} were done: the inbox skipped them")
    with stages.stage("the task's next try drains the rest") as stage:
        airflow.retry_now(PIPELINE, run_id, "keep_orders")
        airflow.wait_for_task(PIPELINE, run_id, "keep_orders")
        drained = airflow.returned(PIPELINE, run_id, "keep_orders")
        stage.says(f"{drained['handled']:,} handled")
    return killed, [claimed, drained]


def _totals_are_published(site: Site, stages: Stages, run_id: str) -> None:
    with stages.stage("Spark sums up and publishes") as stage:
        site.airflow.wait_for_task(PIPELINE, run_id, "publish_totals", timeout_s=_SPARK_S)
        report = site.airflow.returned(PIPELINE, run_id, "publish_totals")
        stage.says(f"{report['rows']:,} orders became {report['messages']:,} totals in {report['topic']!r}")


def _totals_are_kept(site: Site, stages: Stages, run_id: str) -> None:
    with stages.stage("a Dagster asset and Airflow drain the totals") as stage:
        materialized = _materialize(site)
        site.airflow.wait_for_task(PIPELINE, run_id, "check_sums")
        materialized.wait(_DAGSTER_S)
        stage.says("Airflow's task and Dagster's asset check found equal sums")


def _materialize(site: Site) -> Child:
    # One process for the asset and its check; each of them in one of its own would take longer to start.
    config: dict[str, Any] = {"execution": {"config": {"in_process": {}}}}
    words = ["asset", "materialize", "--select", "order_totals", "-m", "dagster_defs.definitions"]
    command: list[str | Path] = [site.dagster, *words, "--config-json", json.dumps(config)]
    return site.processes.start("dagster", command, cwd=site.root)


def _proof(site: Site, killed: Killed, reports: list[Mapping[str, Any]]) -> Proof:
    orders = look_at(site.client, (STREAM,), GROUP)
    topic = Topics(site.client).open(TOPIC)
    partitions = site.partitions()
    deliveries = killed.backlog.delivered + sum(report["read"] for report in reports)
    with site.engine.connect() as connection:
        counts = [
            Counts(
                title="orders",
                backlog=orders,
                handled=handled_by(connection, (STREAM,), GROUP),
                effects=site.count("orders"),
                redelivered=deliveries - orders.enqueued,
                skipped=sum(report["skipped"] for report in reports),
                dead_letters=int(site.client.xlen(quarantine_stream(STREAM))),
            )
        ]
        counts += [
            Counts(
                title=reader,
                backlog=look_at(site.client, partitions, group),
                handled=handled_by(connection, partitions, group),
                effects=site.count(table),
                redelivered=None,
                skipped=None,
                dead_letters=DeadLetters(topic).count(),
            )
            for reader, (group, table) in READERS.items()
        ]
        sums = {"table orders:": "SELECT count(*), coalesce(sum(cents), 0) FROM orders"}
        sums |= {
            f"{reader}:": f"SELECT coalesce(sum(orders), 0), coalesce(sum(cents), 0) FROM {table}"  # noqa: S608
            for reader, (_group, table) in READERS.items()
        }
        kept = {place: Total(*connection.execute(text(query)).one()) for place, query in sums.items()}
    return Proof(counts=tuple(counts), sent=sent_to(site.client, STREAM), kept=kept)
