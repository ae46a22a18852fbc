"""Stream assets and checks: looks that make neither stream nor group, and warn."""

from __future__ import annotations

import dagster as dg
import pytest

from conquiet.consume import dead_letter_stream
from dagster_conquiet import (
    build_backlog_check,
    build_dead_letter_check,
    build_freshness_check,
    build_lag_growth_check,
    build_oldest_age_check,
    build_stream_asset,
    stream_asset_key,
)
from dagster_conquiet.steps.committed import committed_of
from tests.measured_client import MeasuredClient


@pytest.fixture
def observe(stream, resources, instance):
    """Observes the stream, and tells the data version and the metadata."""
    asset = build_stream_asset(stream, group="billing")
    job = dg.define_asset_job("observe", [stream_asset_key(stream)])
    defs = dg.Definitions(assets=[asset], jobs=[job], resources=resources)

    def run():
        result = defs.resolve_job_def("observe").execute_in_process(instance=instance)
        observation = result.get_asset_observation_events()[0].asset_observation_data.asset_observation
        return observation.tags["dagster/data_version"], observation.metadata

    return run


def test_the_data_version_of_a_stream_is_its_last_id(observe, enqueue):
    ids = enqueue(5)

    version, metadata = observe()

    assert version == ids[-1]
    assert metadata["lag"].value == 5


def test_a_stream_that_is_not_there_has_a_version_and_is_not_made(observe, client, stream):
    version, _ = observe()

    assert version == "0-0"
    assert not client.exists(stream)


def test_the_data_version_stays_while_messages_are_only_read_or_trimmed(
    observe, enqueue, make_queue, client, stream
):
    enqueue(5)
    before, _ = observe()

    make_queue().read(block_ms=100, count=5)
    client.xtrim(stream, maxlen=0)

    assert observe()[0] == before


def evaluated(check, resources, instance):
    job = dg.define_asset_job("check", dg.AssetSelection.checks(check))
    defs = dg.Definitions(asset_checks=[check], jobs=[job], resources=resources)
    result = defs.resolve_job_def("check").execute_in_process(instance=instance)
    return result.get_asset_check_evaluations()[0]


def test_the_backlog_check_warns_above_its_limit_and_counts_pending_ones(
    spec, resources, instance, enqueue, make_queue
):
    enqueue(5)
    make_queue().read(block_ms=100, count=2)

    fine = evaluated(build_backlog_check(spec, max_lag=5), resources, instance)
    late = evaluated(build_backlog_check(spec, max_lag=4), resources, instance)

    assert fine.passed
    assert not late.passed
    assert late.severity == dg.AssetCheckSeverity.WARN
    assert (late.metadata["lag"].value, late.metadata["pending"].value) == (3, 2)


def test_a_check_of_a_stream_that_is_not_there_passes_and_makes_nothing(
    spec, resources, instance, client, stream
):
    assert evaluated(build_backlog_check(spec, max_lag=0), resources, instance).passed
    assert not client.exists(stream)


def test_the_oldest_age_is_that_of_any_unfinished_message(spec, resources, instance, queue, old_message):
    late = evaluated(build_oldest_age_check(spec, max_age_s=60), resources, instance)
    queue.read(block_ms=100)
    still_late = evaluated(build_oldest_age_check(spec, max_age_s=60), resources, instance)
    fine = evaluated(build_oldest_age_check(spec, max_age_s=3_600), resources, instance)

    assert not late.passed
    assert late.metadata["oldest_s"].value >= 100
    assert not still_late.passed  # delivered, and not done
    assert fine.passed


@pytest.fixture
def old_message(client, stream):
    """A message of 100 seconds ago."""
    seconds, _ = client.time()
    return client.xadd(stream, {"data": '{"n": 1}'}, id=f"{(seconds - 100) * 1000}-1").decode()


def test_freshness_is_how_long_newer_messages_than_the_newest_committed_one_have_waited(
    spec, resources, instance, queue, old_message, enqueue
):
    def evaluate():
        return evaluated(build_freshness_check(spec, max_age_s=60), resources, instance)

    undelivered = evaluate()
    stuck = queue.read(block_ms=100)
    pending_alone = evaluate()
    (newer,) = enqueue(1)
    queue.ack(queue.read(block_ms=100)[0])
    beside_a_newer_one = evaluate()

    assert not undelivered.passed
    assert undelivered.metadata["behind_s"].value >= 100
    assert not pending_alone.passed
    assert [message.id for message in stuck] == [old_message]
    assert beside_a_newer_one.passed
    assert beside_a_newer_one.metadata["newest_committed_id"].value == newer


def test_the_growth_of_the_lag_is_since_the_last_evaluation(spec, resources, instance, enqueue):
    found = []
    for count in (5, 3, 4):
        enqueue(count)
        found.append(evaluated(build_lag_growth_check(spec, max_growth=3), resources, instance))

    assert [check.passed for check in found] == [True, True, False]
    assert found[2].metadata["grown"].value == 4
    assert found[2].description == "+4 messages since the last check"


def test_a_check_may_be_an_error_that_blocks_with_words_and_automation_of_its_own(spec, resources, instance):
    check = build_backlog_check(
        spec,
        max_lag=-1,
        severity=dg.AssetCheckSeverity.ERROR,
        blocking=True,
        description="The shop is late.",
        automation_condition=dg.AutomationCondition.on_cron("@hourly"),
    )
    (described,) = check.check_specs

    assert (described.blocking, described.description) == (True, "The shop is late.")
    assert described.automation_condition is not None
    with pytest.raises(dg.DagsterError):
        evaluated(check, resources, instance)


def test_a_quiet_stream_is_fresh(spec, resources, instance):
    assert evaluated(build_freshness_check(spec, max_age_s=1), resources, instance).passed


def test_dead_letters_are_a_warning(spec, resources, instance, client, stream):
    fine = evaluated(build_dead_letter_check(spec), resources, instance)
    client.xadd(dead_letter_stream(stream), {"data": "{}"})
    warned = evaluated(build_dead_letter_check(spec), resources, instance)

    assert fine.passed
    assert not warned.passed
    assert warned.severity == dg.AssetCheckSeverity.WARN
    assert warned.metadata["dead_letters"].value == 1


def test_how_far_a_group_has_committed_is_asked_without_what_is_in_the_messages(
    server_url, client, stream, spec
):
    ids = [client.xadd(stream, {"data": "x" * (1 << 20)}).decode() for _ in range(30)]
    client.xgroup_create(stream, spec.group, "0-0")
    client.xreadgroup(spec.group, "worker-1", {stream: ">"}, count=25)
    client.xack(stream, spec.group, *ids[:4])

    with MeasuredClient.from_url(server_url) as measured:
        committed = committed_of(measured, spec)

    assert committed.newest_id == ids[3]
    # The first one behind it, for its age.
    assert sum(measured.sizes) < 2 << 20
