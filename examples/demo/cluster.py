"""The demo on clusters: Spark standalone publishes to three nodes, an executor is killed, Spark sums up."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
from sqlalchemy import (
    BigInteger,
    Column,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    delete,
    func,
    insert,
    select,
)

from conquiet.consume import DrainLimits
from conquiet.db import DbSession
from conquiet.embedded import EmbeddedServer
from conquiet.embedded.ports import choose_ports
from conquiet.mq import DeadLetters, Topic, Topics, drain_partition
from conquiet.queue import open_client
from conquiet.queue.connection import server_of
from conquiet.spark.jobs import application_of, arguments_of
from examples.demo.crash import Killed
from examples.demo.orders import make_orders, open_database
from examples.demo.processes import Child, DemoError, Processes
from examples.demo.proof import Counts, Proof, Total, handled_by
from examples.demo.requirements import ROOT, check_java, program
from examples.demo.result import Plan, Result
from examples.demo.spark_settings import submit_environment
from examples.demo.stages import Stages
from examples.demo.watcher import Backlog, Timeline, Watcher

_NODES, _PARTITIONS, _WORKERS = 3, 6, 2
_GROUP = "ledger"
_START_S = 300.0
_JOB_S = 1_800.0
#: With all of its tasks begun, and far from done.
_KILL_AT = 0.1

_tables = MetaData()
_orders = Table(
    "orders",
    _tables,
    Column("order_id", Integer, primary_key=True),
    Column("customer", String(20), nullable=False),
    Column("cents", BigInteger, nullable=False),
)
#: No unique key on purpose: a total that is kept twice would show.
_totals = Table(
    "order_totals",
    _tables,
    Column("customer", String(20)),
    Column("orders", Integer),
    Column("cents", BigInteger),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSite:
    """Where the jobs run."""

    engine: Engine
    processes: Processes
    master: str
    orders: Topic
    totals: Topic

    def read(self) -> tuple[int, Backlog, dict[str, Backlog]]:
        """Rows of the table of orders, and what is in both topics."""
        with self.engine.connect() as connection:
            rows = int(connection.execute(select(func.count()).select_from(_orders)).scalar_one())
        return rows, Backlog(waiting=added_to(self.orders)), {"totals": backlog_of(self.totals)}

    def submit(self, job: str, **options: Any) -> Child:
        """Start a job on the cluster."""
        spark_submit = str(program("spark-submit", "pyspark"))
        cores = ["--executor-memory", "512m", "--total-executor-cores", str(_WORKERS)]
        command = [spark_submit, "--master", self.master, *cores, application_of(job)]
        return self.processes.start(job, [*command, *arguments_of(options)], cwd=ROOT)


def run_cluster(plan: Plan, stages: Stages, timeline: Timeline) -> Result:
    """Set up, run both jobs, kill an executor of the first one, keep the totals, count."""
    check_java()
    with _open_site(plan, stages) as site:
        timeline.begin_again()
        with Watcher(site.read, timeline):
            killed = _orders_are_published(site, stages, timeline, plan)
            _totals_are_published(site, stages)
            _totals_are_kept(site, stages)
        if plan.is_one_lost:
            with site.engine.begin() as connection:
                connection.execute(delete(_orders).where(_orders.c.order_id == 1))
        return Result(timeline=timeline, killed=killed, proof=_proof(site))


@contextmanager
def _open_site(plan: Plan, stages: Stages) -> Iterator[ClusterSite]:
    (plan.directory / "spark").mkdir()
    database = plan.directory / "shop.db"
    engine = open_database(str(database))
    with (
        EmbeddedServer(dir=plan.directory / "server", cluster=_NODES) as server,
        open_client(server.url) as client,
        Processes(
            plan.directory / "logs",
            {
                **os.environ,
                **submit_environment(plan.directory / "spark"),
                "TMPDIR": str(plan.directory),
                "CONQUIET_REDIS_URL": server.url,
                "CONQUIET_DATABASE_URL": f"sqlite:///{database}",
            },
        ) as processes,
    ):
        with stages.stage(f"{_NODES} nodes of Valkey and {_WORKERS} workers of Spark start") as stage:
            _tables.create_all(engine)
            with engine.begin() as connection:
                connection.execute(insert(_orders), _rows_of(plan.orders))
            master = _start_spark(processes, plan.directory)
            stage.report(f"Valkey {server.version}, {master}; {plan.orders:,} orders in a table")
        yield ClusterSite(
            engine=engine,
            processes=processes,
            master=master,
            orders=Topics(client).create("orders", partitions=_PARTITIONS),
            totals=Topics(client).create("order-totals", partitions=2),
        )


def _rows_of(orders: int) -> list[dict[str, Any]]:
    return [order | {"customer": f"customer-{order['order_id'] % 50}"} for order in make_orders(orders)]


def _start_spark(processes: Processes, directory: Path) -> str:
    """The URL of the master, once the workers are there."""
    import pyspark

    run = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    port, web_port, *worker_ports = choose_ports(2 + _WORKERS)
    master = f"spark://127.0.0.1:{port}"
    package = "org.apache.spark.deploy"
    ports = ["--port", str(port), "--webui-port", str(web_port)]
    children = [processes.start("master", [run, f"{package}.master.Master", "--host", "127.0.0.1", *ports])]
    processes.wait_until(
        lambda: _workers_of(web_port) is not None, goal="Spark starts", timeout_s=_START_S, needed=children
    )
    for number, worker_port in enumerate(worker_ports):
        command = [run, f"{package}.worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g"]
        command += ["--work-dir", str(directory / "spark" / f"worker-{number}")]
        command += ["--webui-port", str(worker_port), master]
        children.append(processes.start(f"worker {number}", command))
    processes.wait_until(
        lambda: _workers_of(web_port) == _WORKERS,
        goal="Spark's workers start",
        timeout_s=_START_S,
        needed=children,
    )
    return master


def _workers_of(web_port: int) -> int | None:
    try:
        with urlopen(f"http://127.0.0.1:{web_port}/json/", timeout=30) as reply:
            return int(json.load(reply)["aliveworkers"])
    except OSError:
        return None


def _orders_are_published(site: ClusterSite, stages: Stages, timeline: Timeline, plan: Plan) -> Killed:
    with stages.stage("Spark publishes the orders, and an executor is killed") as stage:
        options = {"table": "orders", "in": "database", "partition_column": "order_id", "tasks": 4}
        job = site.submit("publish", **options, to_topic="orders", key="customer")
        site.processes.wait_until(
            lambda: added_to(site.orders) >= plan.orders * _KILL_AT,
            goal="the job begins",
            timeout_s=_JOB_S,
            needed=[job],
        )
        pid = _executors(site.processes)[0]
        os.kill(pid, signal.SIGKILL)
        killed = Killed(
            pid=pid, at=time.monotonic(), committed=0, backlog=Backlog(waiting=added_to(site.orders))
        )
        timeline.mark_crash(killed.at)
        stage.report(f"SIGKILL to executor {pid}: {killed.backlog.waiting:,} orders were in the topic")
        job.wait(_JOB_S)
        if killed.backlog.waiting >= plan.orders:
            raise DemoError("the job was done before an executor could be killed; more --orders give it time")
        nodes = {server_of(site.orders.client, stream) for stream in streams_of(site.orders)}
        stage.report(
            f"{added_to(site.orders):,} orders on {len(nodes)} nodes, executor {pid} killed meanwhile"
        )
    return killed


def _totals_are_published(site: ClusterSite, stages: Stages) -> None:
    with stages.stage("Spark sums the topic up and publishes totals") as stage:
        schema = {"topic": "orders", "schema": "customer STRING, cents BIGINT", "by": "customer"}
        window = {"window": "1 hour", "sum": "cents", "key": "customer"}
        site.submit("aggregate", **schema, **window, to_topic="order-totals").wait(_JOB_S)
        stage.report(f"{added_to(site.totals):,} totals")


def _totals_are_kept(site: ClusterSite, stages: Stages) -> None:
    def keep(msg: Any, session: DbSession) -> None:
        total = msg.payload
        row = {"customer": total["customer"], "orders": total["count"], "cents": total["sum_cents"]}
        session.execute(insert(_totals), row)

    with stages.stage("the totals are drained into a table") as stage:
        reports = [
            drain_partition(
                site.totals, partition, _GROUP, keep, site.engine, DrainLimits(idle_ms=500), inbox=True
            )
            for partition in site.totals.partitions
        ]
        stage.report(f"{sum(report.handled for report in reports):,} handled")


def _proof(site: ClusterSite) -> Proof:
    columns = _orders.c, _totals.c
    of_orders = select(func.count(), func.coalesce(func.sum(columns[0].cents), 0))
    of_totals = select(
        func.coalesce(func.sum(columns[1].orders), 0), func.coalesce(func.sum(columns[1].cents), 0)
    )
    with site.engine.connect() as connection:
        sent, kept = Total(*connection.execute(of_orders).one()), Total(*connection.execute(of_totals).one())
        rows = int(connection.execute(select(func.count()).select_from(_totals)).scalar_one())
        handled = handled_by(connection, tuple(streams_of(site.totals)), _GROUP)
    counts = Counts(
        title="totals",
        backlog=backlog_of(site.totals),
        handled=handled,
        effects=rows,
        redelivered=None,
        skipped=None,
        dead_letters=DeadLetters(site.totals).count(),
    )
    return Proof(
        counts=(counts,), sent=sent, kept={"in the totals:": kept, "in the topic:": _total_of(site.orders)}
    )


def _total_of(topic: Topic) -> Total:
    """What is in a topic, order by order."""
    client: Any = topic.client
    cents = [
        json.loads(fields[b"data"])["payload"]["cents"]
        for stream in streams_of(topic)
        for _, fields in client.xrange(stream)
    ]
    return Total(len(cents), sum(cents))


def _executors(processes: Processes) -> list[int]:
    found = []
    for process in processes.left():
        try:
            if any("CoarseGrainedExecutorBackend" in word for word in process.cmdline()):
                found.append(process.pid)
        except psutil.Error:
            continue
    return sorted(found)


def streams_of(topic: Topic) -> list[str]:
    """The stream of each partition."""
    return [topic.keys.stream(partition) for partition in topic.partitions]


def added_to(topic: Topic) -> int:
    """How many messages the topic has."""
    return sum(int(topic.client.xlen(stream)) for stream in streams_of(topic))


def backlog_of(topic: Topic) -> Backlog:
    """All partitions for the group that drains them."""
    found = Backlog()
    for stream in streams_of(topic):
        groups = {group["name"]: group for group in topic.client.xinfo_groups(stream)}
        info = groups.get(_GROUP.encode())
        if info is None:
            found += Backlog(waiting=int(topic.client.xlen(stream)))
        else:
            pending = int(info["pending"])
            found += Backlog(int(info["entries-read"] or 0) - pending, pending, int(info["lag"]))
    return found
