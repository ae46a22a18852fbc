"""Topics: one Dagster partition for each partition, drained under its lease."""

from __future__ import annotations

import uuid
from typing import Any

import dagster as dg
import pytest

from conquiet.mq import DeadLetters, Message, MqAdmin, PartitionBusyError, Producer, Topics
from dagster_conquiet import (
    FailWhen,
    TopicDrainConfig,
    TopicDrainSpec,
    build_backlog_check,
    build_dead_letter_check,
    build_replay_dead_letters_job,
    build_topic_backlog_sensor,
    build_topic_drain_asset,
    topic_partitions,
)
from dagster_conquiet.steps.drain import PartitionMissingError
from tests.with_dagster.jobs_to_rebuild import dying_topic_job
from tests.with_dagster.test_checks import evaluated

HANDLERS = "tests.with_dagster.handlers"


@pytest.fixture
def topic(client):
    """A topic of two partitions."""
    return Topics(client).create(f"orders-{uuid.uuid4().hex[:12]}", partitions=2)


@pytest.fixture
def topic_spec(topic):
    def make(handler: str = "note_effect", **config: Any) -> TopicDrainSpec:
        return TopicDrainSpec(
            topic=topic.name,
            partitions=2,
            group="billing",
            handler=f"{HANDLERS}:{handler}",
            config=TopicDrainConfig(idle_ms=100, **config),
        )

    return make


@pytest.fixture
def send(topic, client):
    """Sends numbered messages to one partition."""

    def add(count: int, partition: int) -> list[str]:
        messages = [Message(payload={"n": n}, partition=partition) for n in range(count)]
        return Producer(client).send_many(topic.name, messages)

    return add


def drained(asset, partition, resources, instance):
    result = dg.materialize([asset], partition_key=partition, resources=resources, instance=instance)
    events = result.asset_materializations_for_node(asset.node_def.name)
    return {name: value.value for name, value in events[0].metadata.items()}


def test_the_partition_keys_are_the_numbers_of_the_partitions():
    assert topic_partitions(3).get_partition_keys() == ["0", "1", "2"]


def test_materialising_a_partition_drains_the_partition_of_that_number_alone(
    topic_spec, send, resources, instance, effects_seen
):
    send(5, partition=0)
    ids = send(3, partition=1)

    metadata = drained(build_topic_drain_asset(topic_spec()), "1", resources, instance)

    assert effects_seen() == sorted(ids)
    assert (metadata["handled"], metadata["remaining_lag"], metadata["pending"]) == (3, 0, 0)
    assert (metadata["first_id"], metadata["last_id"]) == (ids[0], ids[-1])
    assert "messages_over_time" in metadata


def test_two_runs_never_drain_one_partition_at_once(topic, topic_spec, send, resources, instance):
    from conquiet.mq.own.leases import LeaseStore

    send(1, partition=0)
    LeaseStore(topic, "billing").acquire(0, "somebody else", 60_000)

    with pytest.raises(PartitionBusyError):
        drained(build_topic_drain_asset(topic_spec()), "0", resources, instance)


def test_a_topic_that_grew_beyond_its_definitions_is_warned_of(
    topic, topic_spec, resources, instance, client
):
    Topics(client).grow(topic.name, partitions=3)

    result = dg.materialize(
        [build_topic_drain_asset(topic_spec())], partition_key="0", resources=resources, instance=instance
    )

    logs = " ".join(entry.user_message for entry in instance.all_logs(result.run_id))
    assert "has 3 partitions, the definitions 2: nothing drains the others" in logs


def test_a_partition_that_the_topic_does_not_have_is_refused_in_words(topic, resources, instance):
    spec = TopicDrainSpec(topic=topic.name, partitions=4, group="billing", handler=f"{HANDLERS}:note_effect")

    with pytest.raises(
        PartitionMissingError, match="has no partition 3, only 0 to 1: set partitions=2 in its"
    ):
        drained(build_topic_drain_asset(spec), "3", resources, instance)


def test_the_lease_is_given_back_at_the_end(topic, topic_spec, send, resources, instance, client):
    send(1, partition=0)

    drained(build_topic_drain_asset(topic_spec()), "0", resources, instance)

    assert MqAdmin(client).owners(topic.name, "billing").partitions[0].owner is None


def test_a_message_that_fails_every_time_is_a_dead_letter_and_can_be_replayed(
    topic, topic_spec, send, resources, instance, effects_seen
):
    send(2, partition=0)
    refusing = topic_spec("refuse_odd", max_attempts=1, fail_when=FailWhen(dead_letters=None))

    metadata = drained(build_topic_drain_asset(refusing), "0", resources, instance)
    letters = DeadLetters(topic).count()
    build_replay_dead_letters_job(refusing).execute_in_process(resources=resources, instance=instance)
    drained(build_topic_drain_asset(topic_spec()), "0", resources, instance)

    assert (metadata["handled"], metadata["dead_lettered"]) == (1, 1)
    assert letters == 1
    assert DeadLetters(topic).count() == 0
    assert len(effects_seen()) == 2


def test_max_failures_failed_messages_of_a_partition_fail_the_step_and_are_retried_later(
    topic, topic_spec, send, resources, instance, client
):
    send(6, partition=0)

    with pytest.raises(dg.Failure, match="0 are pending, 3 are retried later, 0 are dead letters"):
        drained(build_topic_drain_asset(topic_spec("refuse_all", max_failures=3)), "0", resources, instance)

    assert DeadLetters(topic).count() == 0
    assert client.xpending(topic.keys.stream(0), "billing")["pending"] == 6


def test_the_checks_see_all_partitions_of_a_topic(topic_spec, send, resources, instance):
    send(2, partition=0)
    send(3, partition=1)

    backlog = evaluated(build_backlog_check(topic_spec(), max_lag=4), resources, instance)
    letters = evaluated(build_dead_letter_check(topic_spec()), resources, instance)

    assert not backlog.passed
    assert backlog.metadata["lag"].value == 5
    assert letters.passed


def test_the_sensor_asks_for_one_run_of_each_partition_that_waits(topic_spec, send, resources, instance):
    asset = build_topic_drain_asset(topic_spec())
    job = dg.define_asset_job("drain_topic", [asset])
    sensor = build_topic_backlog_sensor(topic_spec(), job)
    of_redis = {"redis_streams": resources["redis_streams"]}
    send(500, partition=1)

    first: Any = sensor(dg.build_sensor_context(instance=instance, resources=of_redis))
    repeated: Any = sensor(dg.build_sensor_context(instance=instance, resources=of_redis))

    assert [request.partition_key for request in first.run_requests] == ["1"]
    assert first.run_requests[0].run_key == repeated.run_requests[0].run_key
    assert {event.partition: event.metadata["lag"].value for event in first.asset_events} == {"1": 500}


def test_the_sensor_observes_only_the_partitions_that_have_changed(topic_spec, send, resources, instance):
    job = dg.define_asset_job("drain_topic", [build_topic_drain_asset(topic_spec())])
    sensor = build_topic_backlog_sensor(topic_spec(), job)
    of_redis = {"redis_streams": resources["redis_streams"]}

    def observed(cursor: str | None) -> tuple[set[str], str]:
        tick: Any = sensor(dg.build_sensor_context(instance=instance, resources=of_redis, cursor=cursor))
        return {event.partition for event in tick.asset_events}, tick.cursor

    send(1, partition=0)
    send(1, partition=1)
    first, cursor = observed(None)
    send(1, partition=1)
    second, _ = observed(cursor)

    assert (first, second) == ({"0", "1"}, {"1"})
    assert observed("[[1]]")[0] == observed("of a person")[0] == {"0", "1"}


def test_the_sensor_asks_for_nothing_when_no_partition_waits(topic_spec, resources, instance):
    job = dg.define_asset_job("drain_topic", [build_topic_drain_asset(topic_spec())])
    of_redis = {"redis_streams": resources["redis_streams"]}

    result: Any = build_topic_backlog_sensor(topic_spec(), job)(
        dg.build_sensor_context(instance=instance, resources=of_redis)
    )

    assert not result.run_requests


def test_a_killed_step_is_retried_at_once_and_takes_its_own_lease_over(
    topic, send, kept_instance, place, effects_seen, client, monkeypatch
):
    monkeypatch.setenv("CONQUIET_TEST_TOPIC", topic.name)
    ids = send(6, partition=0)

    result = dg.execute_job(
        dg.reconstructable(dying_topic_job), instance=kept_instance, tags={"dagster/partition": "0"}
    )

    assert (place / "died").exists()
    assert result.success
    assert effects_seen() == sorted(ids)
    assert client.xpending(topic.keys.stream(0), "billing")["pending"] == 0
