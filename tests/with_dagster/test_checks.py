"""Stream assets and checks: looks that make neither stream nor group, and warn."""

from __future__ import annotations

import dagster as dg
import pytest

from conquiet.consume import dead_letter_stream
from dagster_conquiet import (
    build_backlog_check,
    build_dead_letter_check,
    build_freshness_check,
    build_stream_asset,
    stream_asset_key,
)


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


def test_freshness_is_the_age_of_the_oldest_unfinished_message(
    spec, resources, instance, queue, client, stream
):
    seconds, _ = client.time()
    client.xadd(stream, {"data": '{"n": 1}'}, id=f"{(seconds - 100) * 1000}-1")

    late = evaluated(build_freshness_check(spec, max_age_s=60), resources, instance)
    queue.read(block_ms=100)
    still_late = evaluated(build_freshness_check(spec, max_age_s=60), resources, instance)
    fine = evaluated(build_freshness_check(spec, max_age_s=3_600), resources, instance)

    assert not late.passed
    assert late.metadata["behind_s"].value >= 100
    assert not still_late.passed  # delivered, and not done
    assert fine.passed


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
