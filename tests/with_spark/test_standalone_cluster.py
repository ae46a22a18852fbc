"""Beyond one machine: the same jobs on a Spark standalone cluster, reading and writing a Redis Cluster."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter

import pytest

from conquiet import EmbeddedServer
from conquiet.mq import Topics
from conquiet.queue import open_client
from conquiet.spark.jobs import application_of, arguments_of
from tests.eventually import HANG_S
from tests.with_spark.job_runs import envelopes
from tests.with_spark.standalone_cluster import spark_cluster
from tests.with_spark.submitting import spark_submit, submit_environment

pytestmark = pytest.mark.xdist_group("spark")

ROWS = 20_000


def submit(job: str, master: str, environment: dict[str, str], **options) -> dict:
    """The report of a job that ran on the cluster."""
    settings = ["--master", master, "--executor-memory", "512m", "--total-executor-cores", "2"]
    command = [spark_submit(), *settings, application_of(job), *arguments_of(options)]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_jobs_on_two_workers_write_to_three_nodes_and_read_from_them(tmp_path):
    environment = submit_environment(tmp_path)
    with EmbeddedServer(cluster=3) as server, spark_cluster(tmp_path, environment) as master:
        environment |= {"CONQUIET_REDIS_URL": server.url}
        with open_client(server.url) as client:
            orders = Topics(client).create("orders", partitions=6)
            totals = Topics(client).create("order-totals", partitions=3)
            columns = "id AS n, concat('c', id % 50) AS customer, id % 97 AS cents"
            query = f"SELECT {columns} FROM range(0, {ROWS}, 1, 4)"

            published = submit(
                "publish",
                master,
                environment,
                query=query,
                to_topic="orders",
                key="customer",
                dedupe_columns="n",
            )
            aggregated = submit(
                "aggregate",
                master,
                environment,
                topic="orders",
                schema="customer STRING, cents BIGINT",
                by="customer",
                window="365 days",
                sum="cents",
                to_topic="order-totals",
                key="customer",
            )

            found = envelopes(orders)
            nodes = {
                client.get_node_from_key(orders.keys.stream(partition)).name
                for partition in orders.partitions
            }
            expected: Counter[str] = Counter()
            for number in range(ROWS):
                expected[f"c{number % 50}"] += number % 97
            assert len(nodes) == 3
            assert published["master"] == aggregated["master"] == master
            assert published["messages"] == aggregated["rows"] == len(found) == ROWS
            assert sorted(message["payload"]["n"] for message in found) == list(range(ROWS))
            said = [message["payload"] for message in envelopes(totals)]
            assert {total["customer"]: total["sum_cents"] for total in said} == expected
            # Each of the two workers ran an executor for each job.
            assert sorted(path.parent.parent.name for path in tmp_path.glob("worker-*/app-*/*")) == (
                ["worker-0"] * 2 + ["worker-1"] * 2
            )
