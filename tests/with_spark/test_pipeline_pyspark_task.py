"""`@task.pyspark` of Airflow's Spark provider, with the data source."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.eventually import HANG_S
from tests.with_spark.job_runs import payloads
from tests.with_spark.submitting import submit_environment


def test_a_pyspark_task_publishes_and_reads(valkey_url, topic, tmp_path):
    command = [sys.executable, "-m", "tests.with_spark.pyspark_task", valkey_url, topic.name]
    environment = os.environ | submit_environment(tmp_path)
    # A home of this process' own would be shared.
    environment.pop("AIRFLOW_HOME", None)

    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=HANG_S, check=False
    )

    assert "success 50" in done.stdout.splitlines(), done.stderr[-3_000:]
    assert sorted(row["n"] for row in payloads(topic)) == list(range(50))
