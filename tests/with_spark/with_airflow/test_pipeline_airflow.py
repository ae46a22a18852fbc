"""The order pipeline in Airflow: real spark-submit, a server with a password that is shown nowhere."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pendulum
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from sqlalchemy import text

from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.operators.spark import SparkPublishOperator
from conquiet import EmbeddedServer
from conquiet.queue import open_client
from conquiet.spark.jobs import JobError
from tests.services import database, open_engine
from tests.with_airflow.conftest import asset_events, xcom
from tests.with_spark.submitting import spark_submit, submit_environment

pytestmark = pytest.mark.xdist_group("orchestrators")

DAGS = Path(__file__).parents[3] / "dags"
PASSWORD = "hush/hush+1"

#: In front of the real one: writes down what it is called with, and what is in the file of secrets.
SUBMIT = """#!/bin/sh
for word in "$@"; do
    echo "$word" >> "{folder}/command"
    case "$word" in --secrets=*) stat -c %a "${{word#--secrets=}}" > "{folder}/mode"
        cp "${{word#--secrets=}}" "{folder}/secrets.json";; esac
done
exec "{real}" "$@"
"""


@pytest.fixture
def submitted(tmp_path, monkeypatch) -> Path:
    """A folder with the command line of spark-submit and the file of secrets that it was given."""
    folder = tmp_path / "submitted"
    folder.mkdir()
    script = folder / "spark-submit"
    script.write_text(SUBMIT.format(folder=folder, real=spark_submit()))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    for name, value in submit_environment(folder).items():
        monkeypatch.setenv(name, value)
    return folder


@pytest.fixture
def shop(tmp_path, monkeypatch, submitted):
    """The connections of the pipeline, on servers of the test's own, and the application's database."""
    monkeypatch.syspath_prepend(str(DAGS))
    with database("sqlite", tmp_path) as url, EmbeddedServer() as server:
        with open_client(server.url) as client:
            client.execute_command("ACL", "SETUSER", "shop", "on", f">{PASSWORD}", "~*", "&*", "+@all")
        fields = {
            "conn_type": "redis_streams",
            "host": "127.0.0.1",
            "port": server.port,
            "login": "shop",
            "password": PASSWORD,
        }
        monkeypatch.setenv(
            "AIRFLOW_CONN_REDIS_STREAMS_DEFAULT", json.dumps(fields | {"extra": {"db_url": url}})
        )
        spark = {"conn_type": "spark", "host": "local[2]"}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(spark))
        engine = open_engine(url)
        yield engine
        engine.dispose()


def state_of(engine) -> dict:
    """Everything that a run may change."""
    with engine.connect() as connection, RedisStreamsHook() as hook:
        topic = hook.topic("order-totals")
        return {
            "orders": connection.execute(text("SELECT count(*), sum(cents) FROM orders")).one(),
            "totals": connection.execute(text("SELECT * FROM order_totals ORDER BY 1, 2")).all(),
            "entries": hook.get_conn().xlen("shop-orders"),
            "published": [hook.get_conn().xlen(topic.keys.stream(part)) for part in topic.partitions],
        }


def test_orders_become_totals_and_a_second_run_changes_nothing(shop, run_dag, submitted, capfd):
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(dag_folder=str(DAGS / "order_pipeline.py"))
    assert bag.import_errors == {}
    pipeline = bag.dags["order_pipeline"]
    for step in pipeline.tasks:
        # What fails is to be seen, not to be tried again in five minutes.
        step.retries = 0
    # The same moment makes the same run id.
    moment = pendulum.datetime(2026, 3, 1, 9, 30)
    same = {"run_conf": {"count": 300}, "run_after": moment, "logical_date": moment}

    first = run_dag(pipeline, **same)
    after_first = state_of(shop)
    events = asset_events(first)
    report = xcom(first, "publish_totals")
    again = run_dag(pipeline, **same)

    assert (first.state, again.state) == ("success", "success")
    assert first.run_id == again.run_id
    assert after_first["orders"] == (300, sum(range(100, 400)))
    assert sum(total.cents for total in after_first["totals"]) == sum(range(100, 400))
    assert sum(after_first["published"]) == report["messages"] == len(after_first["totals"])
    assert (report["rows"], report["exit_code"], report["topic"]) == (300, 0, "order-totals")
    assert events["redis+stream://localhost:6379/order-totals"]["messages"] == report["messages"]
    assert state_of(shop) == after_first

    # Secrets: in a file that only its owner could read, and nowhere else.
    secrets = json.loads((submitted / "secrets.json").read_text())
    arguments = (submitted / "command").read_text().splitlines()
    assert "hush%2Fhush%2B1" in secrets["CONQUIET_REDIS_URL"]
    assert secrets["CONQUIET_DATABASE_URL"] == shop.url.render_as_string(hide_password=False)
    assert (submitted / "mode").read_text().strip() == "600"
    files = {Path(word.partition("=")[2]) for word in arguments if word.startswith("--secrets=")}
    assert len(files) == 2
    assert not any(path.exists() for path in files)
    logged = "".join(capfd.readouterr())
    assert "publish_totals" in logged
    for secret in (PASSWORD, "hush%2Fhush%2B1", "sqlite:///"):
        assert secret not in "\n".join(arguments)
        assert secret not in json.dumps(report)
    assert PASSWORD not in logged
    assert "hush%2Fhush%2B1" not in logged

    # And the check: it passes or fails by the sums.
    task: Any = pipeline.get_task("check_sums")
    check = task.python_callable
    check()
    with shop.begin() as connection:
        connection.execute(text("UPDATE order_totals SET cents = cents + 1 WHERE customer = 'customer-3'"))
    with pytest.raises(ValueError, match="in the totals"):
        check()


def test_a_topic_that_is_missing_fails_the_task_at_once(shop, context, submitted):
    operator = SparkPublishOperator(
        task_id="publish", options={"query": "SELECT 1 AS x"}, to_topic="nowhere", retries=3
    )

    with pytest.raises(AirflowFailException, match=r"topic 'nowhere' is not there.*a retry would fail"):
        operator.execute(context(operator))

    with RedisStreamsHook() as hook:
        assert hook.get_conn().keys("conquiet:spark:report:*") == []


def test_options_that_the_job_would_refuse_are_refused_when_the_dag_is_read():
    with DAG("wrong"), pytest.raises(JobError, match="exactly one of"):
        SparkPublishOperator(task_id="publish", to_topic="orders")
    with DAG("wrong_too"), pytest.raises(ValueError, match="application_args is not for the user"):
        SparkPublishOperator(task_id="publish", to_topic="orders", application_args=["x"])


def test_in_cluster_mode_the_file_of_secrets_is_shipped(shop, context, submitted, monkeypatch):
    (submitted / "spark-submit").write_text(SUBMIT.format(folder=submitted, real="false"))
    operator = SparkPublishOperator(
        task_id="publish",
        options={"query": "SELECT 1"},
        to_topic="t",
        deploy_mode="cluster",
        files="a.txt",
        conn_id="yarn_cluster",
        durable=False,
    )
    monkeypatch.setenv("AIRFLOW_CONN_YARN_CLUSTER", json.dumps({"conn_type": "spark", "host": "yarn"}))

    with pytest.raises(Exception, match="Cannot execute"):
        operator.execute(context(operator))

    words = (submitted / "command").read_text().splitlines()
    [secrets] = [word.partition("=")[2] for word in words if word.startswith("--secrets=")]
    assert words[words.index("--files") + 1] == f"a.txt,{secrets}"
    assert json.loads((submitted / "secrets.json").read_text())["CONQUIET_REDIS_URL"]
    assert PASSWORD not in "".join(words)
