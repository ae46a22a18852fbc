"""The whole pipeline: Airflow enqueues and drains, a worker is killed, Spark sums up, Dagster drains."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, text

from conquiet.consume import dead_letter_stream
from conquiet.mq import DeadLetters, Topics
from examples.demo.crash import Killed, kill_in_the_middle
from examples.demo.processes import Child
from examples.demo.proof import Counts, Proof, Total, handled_by, sent_to
from examples.demo.requirements import ROOT, check_java
from examples.demo.result import Plan, Result
from examples.demo.site import GROUP, PIPELINE, READERS, RECOVERY, STREAM, TOPIC, Site, open_site
from examples.demo.stages import Stages
from examples.demo.watcher import Timeline, Watcher, read_backlog

#: What a task of Airflow returns.
Report = dict[str, Any]

_KILL_AT = 0.4
_MIN_IDLE_MS = 1_000
_SPARK_S = 1_800.0
_DAGSTER_S = 900.0


def run_pipeline(plan: Plan, stages: Stages, timeline: Timeline) -> Result:
    """Set up, run every stage, count."""
    check_java()
    with open_site(plan, stages) as site:
        timeline.begin_again()
        with Watcher(site.all_backlogs, timeline):
            run_id = _orders_are_taken(site, stages, plan)
            killed, of_orders = _orders_are_kept(site, stages, timeline, run_id, plan)
            _totals_are_published(site, stages, run_id)
            of_totals = _totals_are_kept(site, stages, run_id)
        if plan.is_one_lost:
            with site.engine.begin() as connection:
                connection.execute(text("DELETE FROM orders WHERE rowid = 1"))
        return Result(timeline=timeline, killed=killed, proof=_proof(site, killed, of_orders, of_totals))


def _orders_are_taken(site: Site, stages: Stages, plan: Plan) -> str:
    with stages.stage("Airflow enqueues orders") as stage:
        run_id = site.airflow.trigger(PIPELINE, {"count": plan.orders})
        site.airflow.wait_for_task(PIPELINE, run_id, "take_orders")
        stage.report(f"{read_backlog(site.client, (STREAM,), GROUP).enqueued:,} orders, run {run_id}")
    return run_id


def _orders_are_kept(
    site: Site, stages: Stages, timeline: Timeline, run_id: str, plan: Plan
) -> tuple[Killed, list[Report]]:
    airflow = site.airflow
    with stages.stage("Airflow drains them, and its worker is killed") as stage:
        # Often: it must be known before the drain is over.
        task = airflow.wait_for_task(PIPELINE, run_id, "keep_orders", state="running", every_s=0.05)
        killed = kill_in_the_middle(task["pid"], site.orders_backlog, from_rows=int(plan.orders * _KILL_AT))
        timeline.mark_crash(killed.at)
        stage.report(str(killed))
        airflow.wait_for_task(PIPELINE, run_id, "keep_orders", state="up_for_retry")
    with stages.stage("the recovery DAG claims what it left") as stage:
        time.sleep(_MIN_IDLE_MS / 1000)
        recovery = airflow.trigger(RECOVERY, {"min_idle_ms": _MIN_IDLE_MS})
        airflow.wait_for_task(RECOVERY, recovery, "claim_stale")
        claimed = airflow.returned(RECOVERY, recovery, "claim_stale")
        stage.report(f"{claimed['read']} claimed, {claimed['skipped']} were done: the inbox skipped them")
    with stages.stage("the task's next try drains the rest") as stage:
        airflow.retry_now(PIPELINE, run_id, "keep_orders")
        airflow.wait_for_task(PIPELINE, run_id, "keep_orders")
        drained = airflow.returned(PIPELINE, run_id, "keep_orders")
        stage.report(f"{drained['handled']:,} handled")
    return killed, [claimed, drained]


def _totals_are_published(site: Site, stages: Stages, run_id: str) -> None:
    with stages.stage("Spark sums up and publishes") as stage:
        site.airflow.wait_for_task(PIPELINE, run_id, "publish_totals", timeout_s=_SPARK_S)
        report = site.airflow.returned(PIPELINE, run_id, "publish_totals")
        stage.report(f"{report['rows']:,} orders became {report['messages']:,} totals in {report['topic']!r}")


def _totals_are_kept(site: Site, stages: Stages, run_id: str) -> dict[str, list[Report]]:
    """The reports by reader; Dagster's are in its own metadata."""
    with stages.stage("a Dagster asset and Airflow drain the totals") as stage:
        materialized = _materialize(site)
        site.airflow.wait_for_task(PIPELINE, run_id, "check_sums")
        materialized.wait(_DAGSTER_S)
        stage.report("Airflow's task and Dagster's asset check found equal sums")
    tasks = [f"keep_totals_{partition}" for partition in range(len(site.partitions()))]
    return {"totals in Airflow": [site.airflow.returned(PIPELINE, run_id, task) for task in tasks]}


def _materialize(site: Site) -> Child:
    # One process for the asset and its check; each of them in one of its own would take longer to start.
    config: dict[str, Any] = {"execution": {"config": {"in_process": {}}}}
    words = ["asset", "materialize", "--select", "order_totals", "-m", "dagster_defs.definitions"]
    command: list[str | Path] = [site.dagster, *words, "--config-json", json.dumps(config)]
    return site.processes.start("dagster", command, cwd=ROOT)


def _proof(
    site: Site, killed: Killed, of_orders: list[Report], of_totals: Mapping[str, list[Report]]
) -> Proof:
    queries = {"table orders:": "SELECT count(*), coalesce(sum(cents), 0) FROM orders"}
    queries |= {
        f"{reader}:": f"SELECT coalesce(sum(orders), 0), coalesce(sum(cents), 0) FROM {table}"  # noqa: S608
        for reader, (_group, table) in READERS.items()
    }
    with site.engine.connect() as connection:
        counts = [_counts_of_orders(site, connection, killed, of_orders)]
        counts += [_counts_of_totals(site, connection, reader, of_totals.get(reader)) for reader in READERS]
        kept = {place: Total(*connection.execute(text(query)).one()) for place, query in queries.items()}
    return Proof(counts=tuple(counts), sent=sent_to(site.client, STREAM), kept=kept)


def _counts_of_orders(site: Site, connection: Connection, killed: Killed, reports: list[Report]) -> Counts:
    backlog = read_backlog(site.client, (STREAM,), GROUP)
    deliveries = killed.backlog.delivered + sum(report["read"] for report in reports)
    return Counts(
        title="orders",
        backlog=backlog,
        handled=handled_by(connection, (STREAM,), GROUP),
        effects=site.count("orders"),
        redelivered=deliveries - backlog.enqueued,
        skipped=sum(report["skipped"] for report in reports),
        dead_letters=int(site.client.xlen(dead_letter_stream(STREAM))),
    )


def _counts_of_totals(
    site: Site, connection: Connection, reader: str, reports: list[Report] | None
) -> Counts:
    group, table = READERS[reader]
    partitions = site.partitions()
    backlog = read_backlog(site.client, partitions, group)
    redelivered = skipped = None
    if reports is not None:
        redelivered = sum(report["read"] for report in reports) - backlog.enqueued
        skipped = sum(report["skipped"] for report in reports)
    return Counts(
        title=reader,
        backlog=backlog,
        handled=handled_by(connection, partitions, group),
        effects=site.count(table),
        redelivered=redelivered,
        skipped=skipped,
        dead_letters=DeadLetters(Topics(site.client).open(TOPIC)).count(),
    )
