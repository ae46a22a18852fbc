"""SparkPublishOperator: what it makes of the job's report, whatever spark-submit returns."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from airflow.sdk import DAG

from airflow_provider_conquiet.operators.spark import SparkPublishOperator
from airflow_provider_conquiet.task_try import TaskTry
from tests.with_airflow.conftest import xcom

pytestmark = pytest.mark.usefixtures("airflow_connection")

#: Tells what a job would tell, if anything, and returns 0 as in cluster mode.
SUBMIT = """#!{python}
import re, sys
import redis
report = {report!r}
if report:
    key = re.search(r"stream:(conquiet:spark:report:\\S+)", " ".join(sys.argv))[1]
    redis.Redis.from_url({url!r}).xadd(key, {{"data": report}})
"""


@pytest.fixture
def publish(context, valkey_url, tmp_path, monkeypatch):
    """Runs the operator with a spark-submit that returns 0 and leaves this report."""
    with DAG("spark_test", schedule=None) as dag:
        operator = SparkPublishOperator(
            task_id="publish", options={"table": "{{ dag.dag_id }}"}, to_stream="totals", secrets="none"
        )
    told = context(operator)
    key = f"conquiet:spark:report:{TaskTry.of_context(told).task_instance}"
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def run(report: dict | None, as_dag=None):
        text = None if report is None else json.dumps(report)
        script = Path(tmp_path) / "spark-submit"
        script.write_text(SUBMIT.format(python=sys.executable, url=valkey_url, report=text))
        script.chmod(0o700)
        return operator.execute(told) if as_dag is None else as_dag(dag)

    run.key = key  # type: ignore[attr-defined]
    run.operator = operator  # type: ignore[attr-defined]
    return run


def test_the_report_of_a_job_that_is_done_is_returned(publish):
    report = {"job": "publish", "exit_code": 0, "messages": 3}

    assert publish(report) == report
    [written] = publish.operator.get_openlineage_facets_on_complete(None).outputs
    assert (written.name, written.outputFacets["outputStatistics"].rowCount) == ("totals", 3)


def test_it_runs_as_a_task_of_a_dag(publish, run_dag):
    run = publish({"job": "publish", "exit_code": 0, "messages": 3}, as_dag=run_dag)

    assert xcom(run, "publish") == {"job": "publish", "exit_code": 0, "messages": 3}


def test_a_job_that_failed_fails_its_task_though_spark_submit_returned_0(publish):
    with pytest.raises(AirflowException, match="Redis does not answer"):
        publish({"job": "publish", "exit_code": 5, "error": "Redis does not answer"})


def test_a_mistake_fails_its_task_without_retries_though_spark_submit_returned_0(publish):
    with pytest.raises(AirflowFailException, match="no such topic"):
        publish({"job": "publish", "exit_code": 3, "error": "no such topic"})


def test_the_report_of_an_earlier_try_is_not_taken_for_that_of_this_one(publish, valkey):
    valkey.xadd(publish.key, {"data": json.dumps({"job": "publish", "exit_code": 0, "messages": 3})})

    with pytest.raises(AirflowException, match="left no report"):
        publish(None)
