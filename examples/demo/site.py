"""Where the whole pipeline runs: a private Valkey, a SQLite database, an Airflow, a home for Dagster."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis
from sqlalchemy import Engine, text

from conquiet.embedded import EmbeddedServer
from conquiet.embedded.ports import choose_ports
from conquiet.errors import TopicError
from conquiet.mq import Topics
from examples.demo.orders import open_database
from examples.demo.private_airflow import PrivateAirflow, airflow_settings
from examples.demo.processes import Processes
from examples.demo.requirements import ROOT, program
from examples.demo.result import Plan
from examples.demo.spark_settings import submit_environment
from examples.demo.stages import Stages
from examples.demo.watcher import Backlog, read_backlog

# The names that the DAGs and the assets use.
STREAM, GROUP = "shop-orders", "ledger"
TOPIC = "order-totals"
#: Who drains the topic: its group, and the table that it writes.
READERS = {
    "totals in Airflow": ("ledger", "order_totals"),
    "totals in Dagster": ("reports", "reported_totals"),
}
PIPELINE, RECOVERY = "order_pipeline", "claim_stale_shop_orders"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where the pipeline runs."""

    dagster: Path
    server: EmbeddedServer
    client: redis.Redis
    engine: Engine
    processes: Processes
    airflow: PrivateAirflow

    def orders_backlog(self) -> tuple[int, Backlog]:
        """Rows of the table of orders, and their stream."""
        return self.count("orders"), read_backlog(self.client, (STREAM,), GROUP)

    def all_backlogs(self) -> tuple[int, Backlog, Mapping[str, Backlog]]:
        """The same, and the topic for each of its readers."""
        partitions = self.partitions()
        totals = {
            reader: read_backlog(self.client, partitions, group)
            for reader, (group, _table) in READERS.items()
        }
        return (*self.orders_backlog(), totals)

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


@contextmanager
def open_site(plan: Plan, stages: Stages) -> Iterator[Site]:
    """Start the servers and Airflow for the length of the block."""
    directory = plan.directory
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
                stage.report(f"Valkey {server.version}; Airflow with scheduler, LocalExecutor, api-server")
                private.start([ROOT / "dags" / f"{dag}.py" for dag in (PIPELINE, RECOVERY)])
            yield Site(
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
    # A shell that forbids bytecode makes every start compile everything again.
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
