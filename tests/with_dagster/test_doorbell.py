"""The backlog sensors know the group: zombies, cancelled runs, trimmed streams, other consumers."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterRunStatus as Status
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from conquiet import QueueConfig, RedisStreamsQueue
from conquiet.consume.presence import Presence
from conquiet.mq import Message, Producer, Topics
from conquiet.mq.envelope import Envelope
from conquiet.mq.own.leases import LeaseStore
from conquiet.queue.connection import drains_key
from conquiet.queue.stream import HANDED_BACK_IDLE_MS
from dagster_conquiet import (
    DrainConfig,
    TopicDrainSpec,
    build_backlog_sensor,
    build_drain_job,
    build_topic_backlog_sensor,
    build_topic_drain_asset,
)
from dagster_conquiet.steps.backlog import waiting_in_stream
from dagster_conquiet.steps.cancelled import Memory
from tests.eventually import eventually

LABEL = ".dagster/repository"


@pytest.fixture
def job(spec):
    return build_drain_job(spec)


@pytest.fixture
def tick(spec, job, resources, instance):
    """One evaluation of a sensor with these options: what it requests, and why not."""

    def evaluate(of=None, **options: Any) -> tuple[list[dg.RunRequest], str]:
        sensor = of or build_backlog_sensor(spec, job, **options)
        of_redis = {"redis_streams": resources["redis_streams"]}
        result: Any = sensor(dg.build_sensor_context(instance=instance, resources=of_redis))
        return result.run_requests, result.skip_reason.skip_message if result.skip_reason else ""

    return evaluate


@pytest.fixture
def run_that_is(job, instance):
    """A run of the job that has come to this state, and no process behind it."""

    def make(status: Status, of=job, age_s: float = 0, **options: Any) -> str:
        run = instance.create_run_for_job(of, status=Status.NOT_STARTED, **options)
        ways = {Status.STARTED: "START", Status.CANCELED: "CANCELED", Status.STARTING: "STARTING"}
        for became in ["START", ways[status]] if status == Status.CANCELED else [ways[status]]:
            event = dg.DagsterEvent(event_type_value=f"PIPELINE_{became}", job_name=of.name)
            instance.report_dagster_event(event, run.run_id, timestamp=time.time() - age_s)
        return run.run_id

    return make


def alive(client, stream, consumer):
    """A drain that lives under this name."""
    return Presence(RedisStreamsQueue(client, QueueConfig(stream, "billing", consumer)))


def test_a_run_that_was_killed_and_stays_started_does_not_stop_the_sensor(tick, enqueue, run_that_is):
    enqueue(5)
    before, _ = tick()
    zombie = run_that_is(Status.STARTED)

    soon, why = tick()
    later, _ = tick(stalled_after_s=0)

    assert not soon
    assert f"run {zombie} of" in why
    assert "in progress (started)" in why
    assert len(later) == 1
    assert later[0].run_key != before[0].run_key


def test_after_each_run_that_was_killed_the_next_one_has_longer(tick, enqueue, run_that_is):
    enqueue(5)
    run_that_is(Status.STARTED, age_s=90_000)
    second = run_that_is(Status.STARTED, age_s=60_000)

    not_yet, why = tick(stalled_after_s=40_000)
    requested, _ = tick(stalled_after_s=20_000)

    assert not not_yet
    assert f"run {second} of" in why
    assert len(requested) == 1


def test_many_runs_that_were_killed_long_ago_do_not_stop_the_sensor_after_another_one(
    tick, enqueue, run_that_is
):
    enqueue(5)
    for _ in range(12):
        run_that_is(Status.STARTED, age_s=1_000_000)
    run_that_is(Status.STARTED, age_s=4_000)

    requested, _ = tick()

    assert len(requested) == 1


def test_a_run_that_waits_for_a_slot_of_the_pool_is_followed_by_no_other(
    spec, kept_instance, job, resources, enqueue
):
    enqueue(5)
    storage = kept_instance.event_log_storage
    storage.set_concurrency_slots(spec.pool, 1)
    zombie, waiting = (kept_instance.create_run_for_job(job, status=Status.STARTED).run_id for _ in range(2))
    storage.claim_concurrency_slot(spec.pool, zombie, "drain")
    storage.claim_concurrency_slot(spec.pool, waiting, "drain")

    sensor = build_backlog_sensor(spec, job, stalled_after_s=0)
    of_redis = {"redis_streams": resources["redis_streams"]}
    tick: Any = sensor(dg.build_sensor_context(instance=kept_instance, resources=of_redis))

    assert not tick.run_requests
    assert tick.skip_reason.skip_message == (
        f"run {waiting} waits for a slot of pool {spec.pool!r}, which has run {zombie}"
    )


def test_a_slot_of_a_run_that_has_ended_is_named_so_with_what_frees_it(
    spec, kept_instance, job, resources, enqueue
):
    # As of a run that was killed, and failed by hand or by run monitoring: nothing gives its slot back.
    enqueue(5)
    storage = kept_instance.event_log_storage
    storage.set_concurrency_slots(spec.pool, 1)
    killed = kept_instance.create_run_for_job(job, status=Status.STARTED)
    waiting = kept_instance.create_run_for_job(job, status=Status.STARTED).run_id
    storage.claim_concurrency_slot(spec.pool, killed.run_id, "drain")
    storage.claim_concurrency_slot(spec.pool, waiting, "drain")
    kept_instance.report_run_failed(killed, "Exceeded maximum runtime.")

    sensor = build_backlog_sensor(spec, job, stalled_after_s=0, pause_after_failure_s=0)
    of_redis = {"redis_streams": resources["redis_streams"]}
    tick: Any = sensor(dg.build_sensor_context(instance=kept_instance, resources=of_redis))

    assert not tick.run_requests
    assert f"which has run {killed.run_id} (ended)" in tick.skip_reason.skip_message
    assert "free_slots_after_run_end_seconds" in tick.skip_reason.skip_message


def test_a_run_that_is_being_launched_has_time_for_it(tick, enqueue, run_that_is):
    enqueue(5)
    launched = run_that_is(Status.STARTING)

    requested, why = tick(stalled_after_s=0)

    assert not requested
    assert f"run {launched} of" in why


def test_a_run_whose_drain_is_alive_counts_however_long_it_is_silent(
    tick, enqueue, run_that_is, client, stream
):
    enqueue(5)
    run_id = run_that_is(Status.STARTED)

    with alive(client, stream, f"{run_id}.drain.0"):
        requested, why = tick(stalled_after_s=0)

    assert not requested
    assert why == f"run {run_id} drains {stream!r}"


def test_messages_that_are_pending_are_part_of_the_reason_although_they_do_not_wait(
    tick, enqueue, make_queue, client, stream
):
    # As of a run that was killed a moment ago: until its heartbeat ends, nobody knows.
    enqueue(5)
    make_queue("run.drain.0").read(block_ms=100, count=3)
    make_queue("other").read(block_ms=100, count=2)

    with alive(client, stream, "run.drain.0"):
        requested, why = tick()

    assert not requested
    assert why == (
        f"0 messages wait in {stream!r} for 'billing', fewer than 1; 3 are in flight at run.drain.0; "
        "2 are pending at no live consumer and wait for a recovery"
    )


def test_a_consumer_that_dagster_knows_nothing_of_is_the_reason_to_wait(tick, enqueue, client, stream):
    enqueue(5)

    with alive(client, stream, "worker-7"):
        requested, why = tick()

    assert not requested
    assert why == f"consumer 'worker-7' drains {stream!r}"


def test_a_recovery_does_not_keep_new_messages_waiting(tick, enqueue, client, stream):
    enqueue(5)

    with alive(client, stream, f"{uuid.uuid4()}.claim_stale__orders.0"):
        requested, _ = tick()

    assert len(requested) == 1


def test_with_max_runs_a_second_run_is_requested_while_one_works(tick, enqueue, run_that_is, client, stream):
    enqueue(5)
    run_id = run_that_is(Status.STARTED)

    with alive(client, stream, f"{run_id}.drain.0"):
        first, _ = tick(max_runs=2)
        repeated, _ = tick(max_runs=2)
        run_that_is(Status.STARTING)
        third, why = tick(max_runs=2)

    assert [request.run_key for request in first] == [request.run_key for request in repeated]
    assert not third
    assert why.count("run ") == 2


def test_a_cancelled_run_is_not_requested_again_until_a_message_comes(tick, enqueue, run_that_is):
    enqueue(5)
    cancelled = run_that_is(Status.CANCELED)

    requested, why = tick()
    time.sleep(0.01)
    enqueue(1)
    after_another_message, _ = tick()

    assert not requested
    assert f"run {cancelled} was cancelled, and no message has come" in why
    assert len(after_another_message) == 1


@pytest.fixture
def ticks(spec, job, resources, instance):
    """Evaluations of one sensor after the other, each with the cursor that the one before left."""
    of_redis = {"redis_streams": resources["redis_streams"]}
    cursors: dict[str, str] = {}

    def evaluate(of=None) -> int:
        sensor = of or build_backlog_sensor(spec, job)
        context = dg.build_sensor_context(
            instance=instance, resources=of_redis, cursor=cursors.get(sensor.name)
        )
        result: Any = sensor(context)
        cursors[sensor.name] = result.cursor
        return len(result.run_requests or [])

    return evaluate


def test_a_dead_letter_that_is_replayed_after_a_cancelled_run_is_requested_under_its_old_id(
    spec, ticks, enqueue, run_that_is, client, stream
):
    (entry_id,) = enqueue(1)
    claim = (stream, spec.group, "replay", 0)
    enqueue(1)
    before = ticks()
    run_that_is(Status.CANCELED)
    after_the_cancel = ticks()

    # As replay_in_place.lua does.
    client.xgroup_setid(stream, spec.group, entry_id)
    client.xclaim(*claim, [entry_id], idle=0, retrycount=0, force=True, justid=True)

    assert (before, after_the_cancel, ticks(), ticks()) == (1, 0, 1, 1)


def test_a_message_that_comes_after_a_cancelled_run_is_requested_whatever_the_clocks_say(
    ticks, enqueue, run_that_is
):
    enqueue(1)
    run_that_is(Status.CANCELED, age_s=-3_600)
    after_the_cancel = ticks()

    enqueue(1)

    assert (after_the_cancel, ticks(), ticks()) == (0, 1, 1)


def test_the_clock_of_the_server_is_not_the_one_by_which_a_run_was_cancelled(
    enqueue, spec, client, run_that_is, instance
):
    (entry_id,) = enqueue(1)
    waiting = waiting_in_stream(client, spec)
    cancelled = run_that_is(Status.CANCELED, age_s=-60)
    record = instance.get_run_record_by_id(cancelled)

    same_clock = Memory().with_last_run(record, waiting)
    behind = Memory().with_last_run(record, replace(waiting, clock_ahead_ms=-120_000))

    assert waiting.clock_ahead_ms == 0
    assert (same_clock.newest_id, same_clock.waits_for_a_message) == (entry_id, True)
    assert not behind.waits_for_a_message


def test_runs_of_a_job_of_that_name_in_another_code_location_do_not_count(
    spec, job, enqueue, resources, instance
):
    enqueue(5)
    sensor = build_backlog_sensor(spec, job)

    def requested() -> int:
        context = dg.SensorEvaluationContext(
            instance_ref=None,
            last_tick_completion_time=None,
            last_run_key=None,
            cursor=None,
            repository_name="__repository__",
            instance=instance,
            resources={"redis_streams": resources["redis_streams"]},
            code_location_origin=InProcessCodeLocationOrigin(LoadableTargetOrigin(), location_name="shop"),
        )
        result: Any = sensor(context)
        return len(result.run_requests or [])

    instance.create_run_for_job(job, status=Status.STARTED, tags={LABEL: "__repository__@elsewhere"})
    beside_another_location = requested()
    instance.create_run_for_job(job, status=Status.STARTED, tags={LABEL: "__repository__@shop"})

    assert (beside_another_location, requested()) == (1, 0)


def test_a_stream_that_was_trimmed_to_nothing_asks_for_no_run(tick, enqueue, queue, client, stream):
    enqueue(5)
    queue.ack(queue.read(block_ms=100, count=1)[0])
    client.xtrim(stream, maxlen=0)

    requested, why = tick()

    assert not requested
    assert "0 messages wait" in why
    assert "4 that the group was not given were trimmed from the stream" in why


def test_what_a_dead_drain_left_asks_for_a_run_and_what_failed_does_not(
    tick, enqueue, make_queue, client, stream
):
    enqueue(2)
    make_queue("r.drain.0").read(block_ms=100, count=2)
    drains = drains_key(stream, "billing")
    heartbeats = {
        "alive": "9999999999999 instance - 60000",
        "dead": "1 instance - 60000",
        "ended": "0 ended -",
    }

    requested = {}
    for state, heartbeat in heartbeats.items():
        client.hset(drains, "r.drain.0", heartbeat)
        requested[state] = len(tick()[0])

    assert requested == {"alive": 0, "dead": 1, "ended": 0}


def test_what_a_dead_drain_left_asks_for_no_run_where_drains_do_not_take_it_over(
    spec, tick, enqueue, make_queue, client, stream
):
    enqueue(2)
    make_queue("r.drain.0").read(block_ms=100, count=2)
    client.hset(drains_key(stream, "billing"), "r.drain.0", "1 instance - 60000")
    careful = replace(spec, config=DrainConfig(take_over_dead=False))

    requested, why = tick(build_backlog_sensor(careful, build_drain_job(careful)))

    assert not requested
    assert "2 are pending at no live consumer and wait for a recovery" in why


def test_what_was_handed_back_asks_for_a_run(tick, enqueue, make_queue, client, stream):
    ids = enqueue(2)
    make_queue("r.drain.0").read(block_ms=100, count=2)
    before, _ = tick()
    client.xclaim(stream, "billing", "r.drain.0", 0, ids, idle=HANDED_BACK_IDLE_MS, justid=True)

    requested, _ = tick()

    assert not before
    assert requested[0].tags["conquiet/lag"] == "0"


def test_a_run_drains_until_nothing_is_left(spec, job, enqueue, resources, instance, effects_seen):
    assert DrainConfig().max_messages is None
    ids = enqueue(1_200)

    job.execute_in_process(resources=resources, instance=instance)

    assert effects_seen() == sorted(ids)


@pytest.fixture
def topic(client):
    return Topics(client).create(f"orders-{uuid.uuid4().hex[:12]}", partitions=2)


def job_of_topic(spec) -> dg.JobDefinition:
    """The job of `ring` as its runs are made of it."""
    asset = build_topic_drain_asset(spec)
    job = dg.define_asset_job("drain_topic", [asset])
    servers = {"redis_streams": None, "database": None}
    return dg.Definitions(assets=[asset], jobs=[job], resources=servers).resolve_job_def("drain_topic")


@pytest.fixture
def ring(topic, tick):
    """One evaluation of the sensor of a topic: the partitions for which it requests a run, and why not."""
    spec = TopicDrainSpec(
        topic=topic.name, partitions=2, group="billing", handler="tests.with_dagster.handlers:note_effect"
    )
    of_two = spec

    def evaluate(spec=of_two, **options: Any) -> tuple[list[str], str]:
        job = dg.define_asset_job("drain_topic", [build_topic_drain_asset(spec)])
        requests, why = tick(build_topic_backlog_sensor(spec, job, **options))
        return [request.partition_key for request in requests], why

    return evaluate


def test_a_partition_that_another_consumer_owns_is_left_to_it(topic, ring, client):
    Producer(client).send_many(topic.name, [Message(payload={}, partition=number) for number in (0, 1)])
    lease = LeaseStore(topic, "billing")
    lease.acquire(0, "worker-7", 60_000)

    requested, _ = ring()
    lease.acquire(1, "worker-7", 60_000)
    of_none, why = ring()

    assert requested == ["1"]
    assert not of_none
    assert f"consumer 'worker-7' drains partition 0 of {topic.name!r}" in why


def test_a_delayed_message_asks_for_a_run_when_it_is_due_and_not_before(topic, ring, client):
    Producer(client).send(topic.name, {"n": 1}, partition=1, delay_ms=3_600_000)
    before, _ = ring()
    Producer(client).send(topic.name, {"n": 2}, partition=1, delay_ms=1)

    due = eventually(lambda: ring()[0])

    assert not before
    assert due == ["1"]


def test_copies_that_other_groups_retry_are_left_to_those_unless_they_may_hide_others(topic, ring, client):
    copy = Envelope(topic=topic.name, partition=1, payload={}, for_group="audit").encode().decode()

    def ring_with(count: int) -> list[str]:
        for number in range(count):
            # As settle_and_read.lua keeps them.
            name = f"audit:{number}-0:{topic.keys.stream(1)}"
            client.hset(topic.keys.delayed_items(1), name, f"1:{copy}")
            client.zadd(topic.keys.delayed(1), {name: 1})
        return ring()[0]

    assert (ring_with(5), ring_with(120)) == ([], ["0"])


def test_a_delayed_message_that_is_due_after_a_cancelled_run_is_requested(topic, ticks, client, run_that_is):
    spec = TopicDrainSpec(topic=topic.name, partitions=2, group="billing", handler="shop:bill")
    job = job_of_topic(spec)
    sensor = build_topic_backlog_sensor(spec, job)
    Producer(client).send(topic.name, {"n": 1}, partition=1)
    run_that_is(Status.CANCELED, of=job, tags={"dagster/partition": "1"})
    after_the_cancel = ticks(sensor)

    Producer(client).send(topic.name, {"n": 2}, partition=1, delay_ms=1)

    assert not after_the_cancel
    assert eventually(lambda: ticks(sensor)) == 1


def test_partitions_that_the_definitions_do_not_have_are_named_with_what_waits_in_them(topic, ring, client):
    Producer(client).send_many(topic.name, [Message(payload={}, partition=1) for _ in range(3)])
    spec = TopicDrainSpec(topic=topic.name, partitions=1, group="billing", handler="shop:bill")

    requested, why = ring(spec=spec)

    assert not requested
    assert f"topic {topic.name!r} has 2 partitions, the definitions 1" in why
    assert "in which 3 messages wait" in why


def test_a_range_of_partitions_that_is_queued_counts_for_each_of_them(topic, ring, client, instance):
    Producer(client).send(topic.name, {"n": 1}, partition=1)
    spec = TopicDrainSpec(topic=topic.name, partitions=2, group="billing", handler="shop:bill")
    tags = {"dagster/asset_partition_range_start": "0", "dagster/asset_partition_range_end": "1"}
    instance.create_run_for_job(job_of_topic(spec), status=Status.STARTED, tags=tags)

    requested, why = ring()

    assert not requested
    assert "in progress (started)" in why


def test_partitions_of_a_range_that_a_person_cancelled_are_not_requested_again_and_others_are(
    topic, ring, client, instance, run_that_is
):
    Topics(client).grow(topic.name, partitions=3)
    Producer(client).send_many(topic.name, [Message(payload={}, partition=number) for number in (0, 1, 2)])
    spec = TopicDrainSpec(topic=topic.name, partitions=3, group="billing", handler="shop:bill")
    tags = {"dagster/asset_partition_range_start": "0", "dagster/asset_partition_range_end": "1"}
    cancelled = run_that_is(Status.CANCELED, of=job_of_topic(spec), tags=tags)

    requested, why = ring(spec=spec)

    assert requested == ["2"]
    assert not why
    assert f"run {cancelled} was cancelled" in ring(spec=replace(spec, partitions=2))[1]
