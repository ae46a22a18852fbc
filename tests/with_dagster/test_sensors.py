"""build_backlog_sensor: peeks, asks for one run at a time, and never loses or repeats one."""

from __future__ import annotations

import dagster as dg
import pytest
from redis.exceptions import RedisError

from conquiet.errors import QueueError
from dagster_conquiet import (
    DrainSpec,
    RedisStreamsResource,
    build_backlog_sensor,
    build_drain_job,
    stream_asset_key,
)


@pytest.fixture
def job(spec):
    return build_drain_job(spec)


@pytest.fixture
def sensor(spec, job):
    return build_backlog_sensor(spec, job)


@pytest.fixture
def tick(sensor, resources, instance):
    """One evaluation of the sensor, which needs no database."""
    redis_alone = {"redis_streams": resources["redis_streams"]}

    def evaluate(cursor=None, of=sensor):
        context = dg.build_sensor_context(instance=instance, cursor=cursor, resources=redis_alone)
        return of(context)

    return evaluate


def run_as_asked(result, job, resources, instance, **options):
    request = result.run_requests[0]
    tags = request.tags | {"dagster/run_key": request.run_key}
    return job.execute_in_process(resources=resources, instance=instance, tags=tags, **options)


def test_an_empty_stream_asks_for_nothing_and_is_not_created(tick, stream, client):
    result = tick()

    assert not result.run_requests
    assert "0 messages wait" in result.skip_reason.skip_message
    assert not client.exists(stream)


def test_a_burst_is_one_run_request(tick, enqueue):
    enqueue(2_500)

    result = tick()

    assert len(result.run_requests) == 1
    assert result.run_requests[0].tags["conquiet/lag"] == "2500"


def test_a_tick_consumes_nothing(tick, enqueue, client, stream):
    enqueue(5)
    before = client.xinfo_groups(stream)

    tick()

    assert client.xinfo_groups(stream) == before


def test_a_tick_that_is_repeated_has_the_same_run_key(tick, enqueue):
    enqueue(5)

    first, repeated = tick(), tick()
    enqueue(5)
    after_more_came = tick(cursor=first.cursor)

    assert first.run_requests[0].run_key == repeated.run_requests[0].run_key
    assert first.run_requests[0].run_key == after_more_came.run_requests[0].run_key


def test_a_backlog_that_a_finished_run_left_has_a_new_run_key(tick, enqueue, job, resources, instance, spec):
    enqueue(5)
    first = tick()
    config = {"ops": {f"drain__{spec.name}": {"config": {"max_messages": 2}}}}
    run_as_asked(first, job, resources, instance, run_config=config)

    second = tick(cursor=first.cursor)

    assert second.run_requests[0].run_key != first.run_requests[0].run_key


def test_a_run_that_failed_before_it_read_anything_is_followed_by_another(
    spec, job, enqueue, resources, instance, tick
):
    enqueue(5)
    sensor = build_backlog_sensor(spec, job, pause_after_failure_s=0)
    first = tick(of=sensor)
    broken = resources | {"redis_streams": RedisStreamsResource(url="redis://127.0.0.1:1/0")}
    failed = run_as_asked(first, job, broken, instance, raise_on_error=False)

    second = tick(cursor=first.cursor, of=sensor)

    assert not failed.success
    assert second.run_requests[0].run_key != first.run_requests[0].run_key


def test_after_a_failed_run_the_next_one_is_asked_for_after_a_pause(job, enqueue, resources, instance, tick):
    enqueue(5)
    broken = resources | {"redis_streams": RedisStreamsResource(url="redis://127.0.0.1:1/0")}
    run_as_asked(tick(), job, broken, instance, raise_on_error=False)

    result = tick()

    assert not result.run_requests
    assert "failed" in result.skip_reason.skip_message


@pytest.mark.parametrize("became", ["STARTING", "START", "CANCELING"])
def test_nothing_is_asked_for_while_a_run_of_the_job_is_in_progress(tick, enqueue, job, instance, became):
    enqueue(5)
    run = instance.create_run_for_job(job, status=dg.DagsterRunStatus.NOT_STARTED)
    event = dg.DagsterEvent(event_type_value=f"PIPELINE_{became}", job_name=job.name)
    instance.report_dagster_event(event, run.run_id)

    result = tick()

    assert not result.run_requests
    assert "in progress" in result.skip_reason.skip_message


def test_a_run_that_was_made_and_never_launched_is_asked_for_again(tick, enqueue, job, instance):
    enqueue(5)
    first = tick()
    # As a daemon that died between making a run and launching it: the same key makes the next one launch it.
    tags = {"dagster/run_key": first.run_requests[0].run_key}
    instance.create_run_for_job(job, status=dg.DagsterRunStatus.NOT_STARTED, tags=tags)

    assert tick().run_requests[0].run_key == first.run_requests[0].run_key


def test_each_change_of_the_lag_is_one_observation(tick, enqueue, stream):
    enqueue(5)

    first = tick()
    unchanged = tick(cursor=first.cursor)
    enqueue(2)
    changed = tick(cursor=unchanged.cursor)

    assert [event.asset_key for event in first.asset_events] == [stream_asset_key(stream)]
    assert first.asset_events[0].metadata["lag"].value == 5
    assert not unchanged.asset_events
    assert changed.asset_events[0].metadata["lag"].value == 7


def test_fewer_messages_than_min_lag_wait(spec, job, enqueue, tick):
    enqueue(5)

    assert not tick(of=build_backlog_sensor(spec, job, min_lag=6)).run_requests
    assert tick(of=build_backlog_sensor(spec, job, min_lag=5)).run_requests


def test_a_server_that_does_not_answer_fails_the_tick(sensor, instance):
    nobody = {"redis_streams": RedisStreamsResource(url="redis://127.0.0.1:1/0")}

    with pytest.raises((QueueError, RedisError)):
        sensor(dg.build_sensor_context(instance=instance, resources=nobody))


def test_ticks_and_runs_together_drain_everything(
    tick, enqueue, job, resources, instance, effects_seen, spec
):
    ids = enqueue(25)
    config = {"ops": {f"drain__{spec.name}": {"config": {"max_messages": 10}}}}
    runs, cursor = 0, None

    while (result := tick(cursor=cursor)).run_requests:
        run_as_asked(result, job, resources, instance, run_config=config)
        runs, cursor = runs + 1, result.cursor

    assert runs == 3
    assert effects_seen() == sorted(ids)


def test_a_stream_with_colons_and_braces_has_a_valid_sensor(server_url):
    spec = DrainSpec(stream="shop:{eu}:orders", group="billing-1", handler="shop:bill")

    sensor = build_backlog_sensor(spec, build_drain_job(spec))

    assert sensor.name.startswith("backlog__shop__")
