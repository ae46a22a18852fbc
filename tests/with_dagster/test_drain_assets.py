"""build_drain_asset: a materialisation is a drain, and tells what it did."""

from __future__ import annotations

import base64
import json
import logging
from typing import Any
from urllib.parse import quote

import dagster as dg
import pytest

from conquiet import DrainLimits
from dagster_conquiet import (
    ClaimStaleConfig,
    DrainConfig,
    DrainSpec,
    SparkJobSpec,
    TopicDrainConfig,
    build_backlog_check,
    build_claim_stale_job,
    build_drain_asset,
    build_spark_asset,
    build_stream_asset,
    stream_asset_key,
)
from tests.with_dagster.handlers import Numbered, note_effect, note_numbered


def materialized(asset, resources, instance, run_config=None, **options):
    """The metadata of one materialisation."""
    result = dg.materialize([asset], resources=resources, instance=instance, run_config=run_config, **options)
    events = result.asset_materializations_for_node(asset.node_def.name)
    return {name: value.value for name, value in events[0].metadata.items()}


def test_a_materialisation_drains_the_stream_and_commits_each_message(
    spec, resources, instance, enqueue, effects_seen, pending
):
    ids = enqueue(25)

    materialized(build_drain_asset(spec), resources, instance)

    assert effects_seen() == sorted(ids)
    assert pending() == 0


@pytest.mark.parametrize("payload", [Numbered, "tests.with_dagster.handlers:Numbered"])
def test_payloads_are_of_the_type_of_the_spec(stream, resources, instance, enqueue, effects_seen, payload):
    ids = enqueue(3)
    spec = DrainSpec(stream=stream, group="billing", handler=note_numbered, payload=payload)

    materialized(build_drain_asset(spec), resources, instance)

    assert effects_seen() == sorted(ids)


def test_its_metadata_has_counts_ids_lag_time_and_a_picture(spec, resources, instance, enqueue):
    ids = enqueue(25)

    metadata = materialized(build_drain_asset(spec), resources, instance)

    assert (metadata["read"], metadata["handled"], metadata["failed"]) == (25, 25, 0)
    assert metadata["dagster/row_count"] == 25
    assert (metadata["first_id"], metadata["last_id"]) == (ids[0], ids[-1])
    assert (metadata["remaining_lag"], metadata["pending"]) == (0, 0)
    assert metadata["seconds"] > 0
    picture = metadata["messages_over_time"].partition("base64,")[2].partition(")")[0]
    assert base64.b64decode(picture).startswith(b"<svg")
    assert "25 messages" in metadata["messages_over_time"]


def test_a_run_can_override_the_limits_and_the_rest_stays_lag(
    spec, resources, instance, enqueue, effects_seen
):
    enqueue(25)
    asset = build_drain_asset(spec)
    run_config = {"ops": {asset.node_def.name: {"config": {"max_messages": 10}}}}

    metadata = materialized(asset, resources, instance, run_config)

    assert len(effects_seen()) == 10
    assert (metadata["stopped_by"], metadata["remaining_lag"]) == ("max_messages", 15)


def test_the_values_of_the_spec_are_the_defaults_of_the_config(
    stream, resources, instance, enqueue, effects_seen
):
    enqueue(25)
    spec = DrainSpec(stream=stream, group="billing", handler=note_effect, config=DrainConfig(max_messages=7))

    materialized(build_drain_asset(spec), resources, instance)

    assert len(effects_seen()) == 7


def test_metadata_of_runs_observations_and_checks_link_to_the_page(
    spec, stream, resources, instance, enqueue, monkeypatch
):
    monkeypatch.setenv("CONQUIET_PAGE_URL", "https://queues.example")
    enqueue(1)
    check = build_backlog_check(spec, max_lag=0)
    source = build_stream_asset(stream)
    defs = dg.Definitions(
        assets=[source],
        asset_checks=[check],
        jobs=[
            dg.define_asset_job(
                "look", dg.AssetSelection.assets(source.key) | dg.AssetSelection.checks(check)
            )
        ],
        resources=resources,
    )

    looked = defs.resolve_job_def("look").execute_in_process(instance=instance)
    asset = build_drain_asset(spec)
    drained = materialized(asset, resources, instance)

    (observed,) = looked.get_asset_observation_events()
    (checked,) = looked.get_asset_check_evaluations()
    published = build_spark_asset(SparkJobSpec(to_topic=stream, options={"query": "SELECT 1 AS x"}))
    seen = {
        drained["page"],
        next(iter(published.specs)).metadata["page"].value,
        next(iter(asset.specs)).metadata["page"].value,
        observed.asset_observation_data.asset_observation.metadata["page"].value,
        checked.metadata["page"].value,
    }
    assert seen == {f"https://queues.example/topic?name={quote(stream, safe='')}"}


def test_no_payload_reaches_the_event_log(stream, resources, instance, enqueue):
    enqueue(6, card="4111-1111")
    spec = DrainSpec(stream=stream, group="billing", handler="tests.with_dagster.handlers:refuse_odd")

    result = dg.materialize([build_drain_asset(spec)], resources=resources, instance=instance)

    records = instance.all_logs(result.run_id)
    metadata = [dg.serialize_value(entry.dagster_event) for entry in records if entry.is_dagster_event]
    assert metadata
    assert "4111-1111" not in json.dumps(metadata)


def test_fewer_failures_than_max_failures_stay_pending_and_the_step_succeeds(
    stream, resources, instance, enqueue, effects_seen, pending
):
    ids = enqueue(6)
    spec = DrainSpec(stream=stream, group="billing", handler="tests.with_dagster.handlers:refuse_odd")

    metadata = materialized(build_drain_asset(spec), resources, instance)

    assert (metadata["handled"], metadata["failed"], metadata["pending"]) == (3, 3, 3)
    assert effects_seen() == sorted(ids[::2])
    assert pending() == 3


def refusing(stream, handler="refuse_odd", fail_when=None, **config):
    """An asset whose handler fails."""
    spec = DrainSpec(
        stream=stream,
        group="billing",
        handler=f"tests.with_dagster.handlers:{handler}",
        config=DrainConfig(**config),
        fail_when=fail_when,
    )
    return build_drain_asset(spec, key="refusing")


def failure_of(asset, resources, instance):
    """The description and the metadata of the failed step, and the text of the whole event log."""
    result = dg.materialize([asset], resources=resources, instance=instance, raise_on_error=False)
    assert not result.success
    data: Any = result.get_step_failure_events()[0].step_failure_data.user_failure_data
    metadata = {name: value.value for name, value in data.metadata.items()}
    log = json.dumps([dg.serialize_value(entry) for entry in instance.all_logs(result.run_id)])
    return data.description, metadata, log


def test_max_failures_failed_messages_fail_the_step(stream, resources, instance, enqueue, pending):
    enqueue(6)

    description, metadata, _ = failure_of(refusing(stream, max_failures=2), resources, instance)

    assert description.startswith("max_failures ended the drain: 2 of 4 messages failed")
    assert (metadata["failed"], metadata["handled"]) == (2, 2)
    assert pending() == 4  # two failed, two were read and not begun


def test_a_run_in_which_every_message_failed_is_red_and_has_the_counts(stream, resources, instance, enqueue):
    enqueue(3)

    description, metadata, log = failure_of(refusing(stream, "refuse_all"), resources, instance)

    assert description.startswith("every message failed, 3 in all")
    assert (metadata["handled"], metadata["failed"], metadata["pending"]) == (0, 3, 3)
    assert [row.data["error"] for row in metadata["failures"].records] == ["ConnectionError"] * 3
    assert "the bank does not answer" not in log


def test_a_run_with_a_dead_letter_is_red_unless_the_rule_is_another(stream, resources, instance, enqueue):
    enqueue(6)
    materialized(refusing(stream), resources, instance)  # three fail, three are handled
    take_over = ClaimStaleConfig(min_idle_ms=0, max_deliveries=1)
    spec = DrainSpec(
        stream=stream,
        group="billing",
        handler="tests.with_dagster.handlers:note_effect",
    )
    job = build_claim_stale_job(spec, config=take_over)

    result = job.execute_in_process(resources=resources, instance=instance, raise_on_error=False)

    assert not result.success
    failure: Any = result.get_step_failure_events()[0].step_failure_data.user_failure_data
    assert failure.description.startswith("every message failed, 3 in all")
    assert failure.metadata["dead_lettered"].value == 3


def test_a_rule_of_the_users_own_decides(stream, resources, instance, enqueue):
    enqueue(6)
    rule = refusing(stream, fail_when=lambda report: report.failed > report.handled / 2)

    description, metadata, _ = failure_of(rule, resources, instance)

    assert description.startswith("3 of 6 messages failed, ended by idle, and its fail_when says so")
    assert metadata["handled"] == 3


def test_a_run_may_set_the_rule_and_never_failing_is_one(stream, resources, instance, enqueue):
    enqueue(3)
    never = {"fail_when": {"all_failed": False, "dead_letters": None}}
    run_config = {"ops": {"refusing": {"config": never}}}

    metadata = materialized(refusing(stream, "refuse_all"), resources, instance, run_config)

    assert metadata["failed"] == 3


def test_the_text_of_an_error_is_in_the_log_only_where_it_is_allowed(stream, resources, instance, enqueue):
    enqueue(1)

    *_, log = failure_of(refusing(stream, "refuse_all", log_errors=True), resources, instance)

    assert "the bank does not answer" in log


@pytest.mark.parametrize("handler", ["refuse_all", "refuse_all_of_a_batch"])
@pytest.mark.parametrize("is_allowed", [False, True])
def test_the_log_of_the_process_has_the_text_of_an_error_only_where_it_is_allowed(
    stream, resources, instance, enqueue, caplog, handler, is_allowed
):
    # What Python's logging writes to stderr is kept by Dagster and shown beside the event log.
    enqueue(2)

    failure_of(refusing(stream, handler, log_errors=is_allowed), resources, instance)

    ours = [record for record in caplog.records if record.name.startswith("conquiet")]
    text = "\n".join(logging.Formatter().format(record) for record in ours)
    assert "ConnectionError" in text
    assert ("the bank does not answer" in text) == is_allowed


def test_a_database_that_fails_in_the_middle_puts_no_payload_into_the_event_log(
    stream, resources, instance, enqueue
):
    enqueue(1, card="4111-1111")
    asset = refusing(stream, "insert_into_a_table_that_is_locked")

    result = dg.materialize([asset], resources=resources, instance=instance, raise_on_error=False)

    log = json.dumps([dg.serialize_value(entry) for entry in instance.all_logs(result.run_id)])
    assert not result.success
    assert "OperationalError" in log
    assert "4111-1111" not in log


@pytest.mark.parametrize("is_allowed", [False, True])
def test_a_drain_that_an_outage_ends_fails_with_the_counts_of_what_it_did(
    stream, resources, instance, enqueue, is_allowed
):
    enqueue(3, card="4111-1111")
    asset = refusing(stream, "insert_into_a_table_that_is_locked", log_errors=is_allowed)

    description, metadata, log = failure_of(asset, resources, instance)

    assert "the drain was ended by " in description
    assert "OperationalError" in log
    assert (metadata["handled"], metadata["stopped_by"]) == (0, "error")
    assert metadata["read"] == metadata["handed_back"] > 0
    assert "remaining_lag" in metadata
    assert ("attempt to write a readonly database" in log) == is_allowed


def test_the_table_of_failures_says_what_its_columns_are(stream, resources, instance, enqueue):
    enqueue(1)

    result = dg.materialize(
        [refusing(stream, "refuse_all")], resources=resources, instance=instance, raise_on_error=False
    )

    data: Any = result.get_step_failure_events()[0].step_failure_data.user_failure_data
    columns = data.metadata["failures"].schema.columns
    assert [column.name for column in columns] == ["id", "error"]
    assert all(column.description for column in columns)


def test_a_clean_end_leaves_no_consumer_name_in_the_group(spec, resources, instance, enqueue, consumers):
    enqueue(5)

    materialized(build_drain_asset(spec), resources, instance)

    assert consumers() == set()


def test_a_handler_that_cannot_be_named_or_called_is_refused_when_definitions_load(stream):
    with pytest.raises(ValueError, match=r"package\.module:function"):
        DrainSpec(stream=stream, group="billing", handler="shop.handlers.bill")


def test_a_handler_that_would_not_run_when_called_is_refused_when_definitions_load(stream):
    def bill(msg, session):
        yield

    async def bill_soon(msg, session):
        pass

    with pytest.raises(TypeError, match="would not run"):
        DrainSpec(stream=stream, group="billing", handler=bill)
    with pytest.raises(TypeError, match="AsyncEngine"):
        DrainSpec(stream=stream, group="billing", handler=bill_soon)


@pytest.mark.parametrize("config", [DrainConfig(), ClaimStaleConfig(), TopicDrainConfig()])
def test_a_step_drains_until_nothing_is_left_and_no_longer_than_ten_minutes(config):
    def never() -> bool:
        return False

    assert config.limits(never) == DrainLimits(max_messages=None, max_duration_s=600.0, should_stop=never)


def test_the_asset_is_downstream_of_its_stream_and_in_a_pool(stream, spec):
    asset = build_drain_asset(spec, key="billed_orders", group_name="shop")

    assert asset.key == dg.AssetKey("billed_orders")
    assert stream_asset_key(stream) in asset.asset_deps[asset.key]
    assert asset.op.pool == spec.pool


def test_it_can_be_called_without_a_run(spec, resources, enqueue, effects_seen):
    enqueue(3)

    with dg.build_asset_context(resources=resources) as context:
        result: Any = build_drain_asset(spec)(context, config=DrainConfig())

    assert result.metadata["handled"].value == 3
    assert len(effects_seen()) == 3
