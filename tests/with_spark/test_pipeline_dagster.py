"""The order pipeline in Dagster: the Spark job is launched through Pipes, and its report is the metadata."""

from __future__ import annotations

import sys

import dagster as dg
import pytest
from sqlalchemy import text

from conquiet import EmbeddedServer
from conquiet.mq import Topics
from conquiet.spark.jobs import JobError
from dagster_conquiet import RedisStreamsResource, SparkJobSpec, build_spark_asset
from dagster_defs import order_ledger, order_pipeline
from dagster_defs.definitions import defs
from dagster_defs.resources import BillingDatabase
from tests.with_spark.submitting import submit_environment

pytestmark = pytest.mark.xdist_group("orchestrators")

BEHIND_ORDERS = ["published_totals", "order_totals"]


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """The shop's resources on servers of the test's own: the pipeline names its streams."""
    for name, value in submit_environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    with EmbeddedServer() as server:
        database = BillingDatabase(url=f"sqlite:///{tmp_path}/shop.db")
        yield {"redis_streams": RedisStreamsResource(url=server.url), "database": database}
        database.dispose()


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as opened:
        yield opened


def state_of(shop) -> dict:
    """Everything that a run may change."""
    engine = shop["database"].get_engine()
    with engine.connect() as connection, shop["redis_streams"].connect() as client:
        topic = Topics(client).open("order-totals")
        found = {
            "sums": order_ledger.sums(connection),
            "totals": connection.execute(text("SELECT * FROM reported_totals ORDER BY 1, 2")).all(),
            "entries": client.xlen("shop-orders"),
            "published": sum(client.xlen(topic.keys.stream(part)) for part in topic.partitions),
        }
    shop["database"].dispose()
    return found


def metadata_of(result, asset: str) -> dict:
    [event] = result.asset_materializations_for_node(asset)
    return {name: value.value for name, value in event.metadata.items()}


def test_orders_become_totals_a_second_run_changes_nothing_and_a_missing_total_fails_the_run(shop, instance):
    job = defs.resolve_job_def("order_pipeline")
    of = {"resources": shop, "instance": instance}
    config = {"ops": {"shop_orders": {"config": {"orders": 300}}}}
    pipeline = [getattr(order_pipeline, name) for name in ("shop_orders", "orders", *BEHIND_ORDERS)]
    pipeline.append(order_pipeline.sums_are_equal)

    first = job.execute_in_process(run_config=config, **of)
    after_first = state_of(shop)
    dg.materialize(pipeline, selection=BEHIND_ORDERS, **of)
    after_second = state_of(shop)
    with shop["database"].get_engine().begin() as connection:
        connection.execute(text("DELETE FROM reported_totals WHERE customer = 'customer-3'"))
    shop["database"].dispose()
    checked = dg.materialize(pipeline, selection=BEHIND_ORDERS[1:], raise_on_error=False, **of)

    facts = metadata_of(first, "published_totals")
    [check] = first.get_asset_check_evaluations()
    assert check.passed
    assert after_first["sums"] == ((300, sum(range(100, 400))), (300, sum(range(100, 400))))
    assert (facts["rows"], facts["topic"]) == (300, "order-totals")
    assert facts["dagster/row_count"] == facts["messages"] == len(after_first["totals"])
    assert after_first["published"] == facts["messages"]
    assert {name: after_second[name] for name in ("sums", "totals", "entries")} == {
        name: after_first[name] for name in ("sums", "totals", "entries")
    }
    assert not checked.success
    assert [check.passed for check in checked.get_asset_check_evaluations()] == [False]


def test_a_topic_that_is_missing_fails_the_step_at_once_with_a_sentence(shop, instance):
    # Without spark-submit: a Java process would be started to find that out.
    spec = SparkJobSpec(to_topic="nowhere", options={"query": "SELECT 1 AS x"}, submit=(sys.executable,))
    asset = build_spark_asset(spec, retry_policy=dg.RetryPolicy(max_retries=5))

    result = dg.materialize([asset], resources=shop, instance=instance, raise_on_error=False)

    [failure] = [event for event in result.all_events if event.is_step_failure]
    assert "topic 'nowhere' is not there" in str(failure.step_failure_data.error)
    assert asset.key == dg.AssetKey(["streams", "nowhere"])


def test_options_that_the_job_would_refuse_are_refused_when_definitions_are_loaded():
    with pytest.raises(JobError, match="exactly one of"):
        SparkJobSpec(to_topic="orders")
