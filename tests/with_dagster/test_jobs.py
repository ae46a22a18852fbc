"""Ops and jobs: enqueue once, drain, recover what dead steps left, replay dead letters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import quote

import dagster as dg
import pytest

from conquiet.consume import dead_letter_stream
from dagster_conquiet import (
    ClaimStaleConfig,
    DrainConfig,
    DrainSpec,
    SparkJobSpec,
    TaskSpec,
    TopicDrainSpec,
    build_backlog_check,
    build_backlog_sensor,
    build_claim_stale_job,
    build_claim_stale_schedule,
    build_drain_asset,
    build_drain_job,
    build_enqueue_op,
    build_replay_dead_letters_job,
    build_spark_asset,
    build_stream_asset,
    build_task_asset,
    build_topic_asset,
)

HANDLERS = "tests.with_dagster.handlers"


def enqueue_job(spec, *, fails_first=False):
    """A job whose enqueue op is followed by one that may fail once."""
    seen = []

    @dg.op
    def make() -> list[dict]:
        return [{"n": n} for n in range(5)]

    @dg.op
    def follow(count: int) -> None:
        seen.append(count)
        if fails_first and len(seen) == 1:
            raise RuntimeError("the first time fails")

    enqueue = build_enqueue_op(spec)

    @dg.job
    def send() -> None:
        follow(enqueue(make()))

    return send, seen


def retry_of(run) -> dict[str, str]:
    """The tags that Dagster gives to a retry."""
    return {"dagster/parent_run_id": run.run_id, "dagster/root_run_id": run.run_id}


def test_enqueue_adds_what_the_op_before_it_made(spec, stream, resources, instance, client):
    send, seen = enqueue_job(spec)

    send.execute_in_process(resources=resources, instance=instance)

    assert seen == [5]
    assert client.xlen(stream) == 5


def test_a_retried_run_enqueues_nothing_a_second_time(spec, stream, resources, instance, client):
    send, seen = enqueue_job(spec, fails_first=True)
    first = send.execute_in_process(resources=resources, instance=instance, raise_on_error=False)

    second = send.execute_in_process(resources=resources, instance=instance, tags=retry_of(first))

    assert not first.success
    assert second.success
    assert seen == [5, 5]
    assert client.xlen(stream) == 5


def test_a_run_executed_again_after_its_success_is_new_work(spec, stream, resources, instance, client):
    send, _ = enqueue_job(spec)
    first = send.execute_in_process(resources=resources, instance=instance)

    send.execute_in_process(resources=resources, instance=instance, tags=retry_of(first))

    assert client.xlen(stream) == 10


def test_a_drain_job_reports_counts_and_ids(spec, resources, instance, enqueue, effects_seen):
    ids = enqueue(5)

    result = build_drain_job(spec).execute_in_process(resources=resources, instance=instance)

    report = result.output_for_node(f"drain__{spec.name}")
    assert (report["handled"], report["first_id"], report["last_id"]) == (5, ids[0], ids[-1])
    assert effects_seen() == sorted(ids)


def test_the_recovery_handles_what_a_dead_step_left_and_forgets_its_name(
    spec, resources, instance, enqueue, make_queue, effects_seen, pending, consumers
):
    dead = build_drain_job(spec).execute_in_process(resources=resources, instance=instance)
    ids = enqueue(5)
    make_queue(f"{dead.run_id}.drain.0").read(block_ms=100, count=5)
    job = build_claim_stale_job(spec, config=ClaimStaleConfig(min_idle_ms=0))

    result = job.execute_in_process(resources=resources, instance=instance)

    assert result.output_for_node(f"claim_stale__{spec.name}")["handled"] == 5
    assert effects_seen() == sorted(ids)
    assert (pending(), consumers()) == (0, set())


def test_a_recovery_that_fails_forgets_the_names_of_dead_steps_too(
    spec, resources, instance, enqueue, make_queue, consumers
):
    enqueue(1)
    job = build_claim_stale_job(
        replace(spec, handler="tests.with_dagster.handlers:refuse_all"),
        config=ClaimStaleConfig(min_idle_ms=0),
    )
    finished = instance.create_run_for_job(build_drain_job(spec), status=dg.DagsterRunStatus.FAILURE).run_id
    make_queue(f"{finished}.drain.0").read(block_ms=100, count=1)

    result = job.execute_in_process(resources=resources, instance=instance, raise_on_error=False)

    assert not result.success
    assert all(not name.startswith(finished) for name in consumers())


def test_the_recovery_leaves_alone_what_is_being_handled(
    spec, resources, instance, enqueue, make_queue, effects_seen, pending
):
    enqueue(5)
    make_queue("alive").read(block_ms=100, count=5)

    build_claim_stale_job(spec).execute_in_process(resources=resources, instance=instance)

    assert effects_seen() == []
    assert pending() == 5


def test_the_recovery_takes_what_is_idle_for_the_claim_idle_ms_of_the_spec(
    stream, resources, instance, enqueue, make_queue, effects_seen
):
    ids = enqueue(5)
    make_queue("dead").read(block_ms=100, count=5)
    spec = DrainSpec(stream=stream, group="billing", handler=f"{HANDLERS}:note_effect", claim_idle_ms=1)

    build_claim_stale_job(spec).execute_in_process(resources=resources, instance=instance)

    assert effects_seen() == sorted(ids)


def test_the_recovery_is_scheduled_every_five_minutes_and_never_twice_at_once(spec, kept_instance):
    job = build_claim_stale_job(spec)
    schedule = build_claim_stale_schedule(job)

    first = schedule.evaluate_tick(dg.build_schedule_context(instance=kept_instance))
    kept_instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
    second = schedule.evaluate_tick(dg.build_schedule_context(instance=kept_instance))

    assert schedule.cron_schedule == "*/5 * * * *"
    assert len(first.run_requests or ()) == 1
    assert second.run_requests == []
    assert "in progress" in str(second.skip_message)


def test_the_recovery_of_another_stream_by_a_job_of_the_same_name_does_not_count(spec, kept_instance):
    # As in another code location, which a schedule is not told.
    schedule = build_claim_stale_schedule(build_claim_stale_job(spec, name="recover"))
    elsewhere = build_claim_stale_job(replace(spec, stream="elsewhere"), name="recover")
    kept_instance.create_run_for_job(elsewhere, status=dg.DagsterRunStatus.STARTED, tags=elsewhere.tags)

    tick = schedule.evaluate_tick(dg.build_schedule_context(instance=kept_instance))

    assert len(tick.run_requests or ()) == 1


def test_the_schedule_takes_the_options_of_a_schedule(spec):
    schedule = build_claim_stale_schedule(
        build_claim_stale_job(spec), name="every_night", execution_timezone="Europe/Lisbon"
    )

    assert (schedule.name, schedule.execution_timezone) == ("every_night", "Europe/Lisbon")


def test_what_the_ui_shows_of_jobs_and_ops_says_what_they_do(spec, stream):
    jobs = [build_drain_job(spec), build_claim_stale_job(spec), build_replay_dead_letters_job(spec)]
    sensor = build_backlog_sensor(spec, jobs[0])
    ops = [job.nodes[0].definition for job in jobs[1:]] + [build_enqueue_op(spec)]

    described: list[Any] = [*jobs, *ops, sensor, build_claim_stale_schedule(jobs[1])]
    for one in described:
        assert stream in (one.description or ""), one.name
    tagged_ones: list[Any] = [*jobs, sensor]
    for tagged in tagged_ones:
        assert (tagged.tags["conquiet/stream"], tagged.tags["conquiet/group"]) == (stream, "billing")
    assert all("dagster/kind/redis" in op.tags for op in ops)


def test_every_definition_leads_to_the_page_and_assets_of_others_to_their_code(
    spec, stream, monkeypatch, tmp_path
):
    monkeypatch.setenv("CONQUIET_PAGE_URL", "https://queues.example")
    job = build_drain_job(spec)
    topic = TopicDrainSpec(topic="shipments", group="couriers", handler="shop:ship")
    definitions: list[Any] = [
        *(job, build_backlog_sensor(spec, job), build_claim_stale_schedule(build_claim_stale_job(spec))),
        *(build_stream_asset(stream), next(iter(build_backlog_check(spec, max_lag=1).check_specs))),
    ]
    made = [
        build_spark_asset(SparkJobSpec(to_topic="orders", options={"query": "SELECT 1 AS x"})),
        build_task_asset(TaskSpec(task="shop.total"), key="total"),
        build_task_asset(TaskSpec(task="shop.total"), key="of_a_function", args=given_to_total),
    ]

    links = {definition.metadata["page"].value for definition in definitions}
    references = [
        next(iter(asset.specs)).metadata["dagster/code_references"].code_references[0] for asset in made
    ]

    assert links == {f"https://queues.example/topic?name={quote(stream, safe='')}"}
    assert build_topic_asset(topic).metadata["page"].value == "https://queues.example/topic?name=shipments"
    assert {reference.file_path for reference in references} == {__file__}
    assert references[2].label == "given_to_total"


def given_to_total(_context):
    """The arguments of a task."""
    return {}


def test_jobs_of_one_spec_do_not_collide(spec, resources):
    quick = replace(spec, config=DrainConfig(max_messages=10))
    jobs = [
        *(
            build_drain_job(spec),
            build_drain_job(spec, name="by_day"),
            build_drain_job(quick, name="by_night"),
        ),
        *(build_claim_stale_job(spec), build_claim_stale_job(quick, name="recover_by_night")),
        *(build_replay_dead_letters_job(spec), build_replay_dead_letters_job(spec, name="replay_by_night")),
    ]
    assets = [build_drain_asset(spec)]

    dg.Definitions.validate_loadable(dg.Definitions(assets=assets, jobs=jobs, resources=resources))


@pytest.fixture
def given_up(stream, resources, instance, enqueue, make_queue):
    """Three messages that were delivered once too often, and a malformed one."""
    queue = make_queue()
    queue.client.xadd(stream, {"other": "field"})
    enqueue(3)
    spec = DrainSpec(
        stream=stream,
        group="billing",
        handler=f"{HANDLERS}:refuse_all",
        config=DrainConfig(max_deliveries=1),
    )
    recovery = build_claim_stale_job(replace(spec, claim_idle_ms=1))
    for job in (build_drain_job(spec), recovery):
        result = job.execute_in_process(resources=resources, instance=instance, raise_on_error=False)
        assert not result.success
    return spec


def test_a_message_that_fails_too_often_is_a_dead_letter_and_can_be_replayed(
    given_up, spec, stream, resources, instance, client, effects_seen, pending
):
    assert client.xlen(dead_letter_stream(stream)) == 4
    replay = build_replay_dead_letters_job(given_up)

    result = replay.execute_in_process(resources=resources, instance=instance)
    build_drain_job(spec).execute_in_process(resources=resources, instance=instance)

    report = result.output_for_node(f"replay_dead_letters__{spec.name}")
    assert (report["replayed"], report["refused"]) == (3, 1)
    assert len(effects_seen()) == 3
    assert pending() == 0
    assert client.xlen(dead_letter_stream(stream)) == 1


def test_the_sensor_requests_a_run_for_replayed_dead_letters(given_up, spec, resources, instance):
    job = build_drain_job(spec)
    sensor = build_backlog_sensor(spec, job, pause_after_failure_s=0)
    of_redis = {"redis_streams": resources["redis_streams"]}

    def requested() -> int:
        tick: Any = sensor(dg.build_sensor_context(instance=instance, resources=of_redis))
        return len(tick.run_requests or [])

    before = requested()
    build_replay_dead_letters_job(given_up).execute_in_process(resources=resources, instance=instance)
    after_the_replay = requested()
    job.execute_in_process(resources=resources, instance=instance)

    assert (before, after_the_replay, requested()) == (0, 1, 0)


def test_a_replay_that_died_before_it_deleted_a_letter_adds_nothing_twice(
    given_up, spec, stream, resources, instance, client
):
    letters = client.xrange(dead_letter_stream(stream))
    replay = build_replay_dead_letters_job(given_up)
    replay.execute_in_process(resources=resources, instance=instance)
    length = client.xlen(stream)
    # As if the process had died between the two commands: the letters are still there.
    client.delete(dead_letter_stream(stream))
    for letter_id, fields in letters:
        client.xadd(dead_letter_stream(stream), fields, id=letter_id)

    replay.execute_in_process(resources=resources, instance=instance)

    assert client.xlen(stream) == length
    assert client.xlen(dead_letter_stream(stream)) == 1


def test_a_dry_run_of_a_replay_changes_nothing(given_up, spec, stream, resources, instance, client):
    before = client.xlen(stream), client.xlen(dead_letter_stream(stream))
    name = f"replay_dead_letters__{spec.name}"

    result = build_replay_dead_letters_job(given_up).execute_in_process(
        resources=resources,
        instance=instance,
        run_config={"ops": {name: {"config": {"dry_run": True, "limit": 2}}}},
    )

    assert result.output_for_node(name)["replayed"] == 2
    assert (client.xlen(stream), client.xlen(dead_letter_stream(stream))) == before
