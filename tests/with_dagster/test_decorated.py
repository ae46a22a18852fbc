"""@drain_asset and @drain_op, partitions of every kind, and automation that fires on new messages alone."""

# No `from __future__ import annotations` here: Dagster reads the types of the functions.

import uuid
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest

from conquiet.mq import Message, Producer, Topics
from dagster_conquiet import (
    ClaimStaleConfig,
    DrainConfig,
    DrainSpec,
    FailWhen,
    TopicDrainConfig,
    TopicDrainSpec,
    build_backlog_sensor,
    build_claim_stale_job,
    build_drain_asset,
    build_stream_asset,
    build_topic_asset,
    build_topic_backlog_sensor,
    build_topic_drain_asset,
    drain_asset,
    drain_op,
    spec_of,
    stream_asset_key,
)
from tests.with_dagster.handlers import note_effect


class Prices(dg.ConfigurableResource):
    """A resource of the user's own."""

    factor: int


@pytest.fixture
def bare_spec(stream):
    """What is drained, without a handler."""
    return DrainSpec(stream=stream, group="billing")


def test_a_decorated_handler_is_an_asset_of_its_name_and_docstring(
    bare_spec, resources, instance, enqueue, effects_seen
):
    ids = enqueue(3)

    @drain_asset(bare_spec, group_name="shop", owners=["team:billing"])
    def bills(msg, session):
        """One row per order."""
        note_effect(msg, session)

    result = dg.materialize([bills], resources=resources, instance=instance)

    assert bills.key == dg.AssetKey("bills")
    assert bills.descriptions_by_key[bills.key] == "One row per order."
    assert result.asset_materializations_for_node("bills")[0].metadata["handled"].value == 3
    assert effects_seen() == sorted(ids)


def test_what_the_ui_shows_of_an_asset_leads_to_its_handler(bare_spec, stream):
    @drain_asset(bare_spec, group_name="shop", owners=["team:billing"], metadata={"table": "bills"})
    def bills(msg, session):
        """One row per order."""

    source = build_stream_asset(stream)
    (spec,) = bills.specs
    (reference,) = spec.metadata["dagster/code_references"].code_references

    assert (spec.group_name, list(spec.owners), spec.kinds) == ("shop", ["team:billing"], {"redis"})
    assert (reference.file_path, reference.label.rpartition(".")[2]) == (__file__, "bills")
    assert spec.metadata["table"] == "bills"
    assert (spec.metadata["stream"], spec.metadata["group"]) == (stream, bare_spec.group)
    assert source.tags["dagster/kind/redis"] == ""
    assert source.description == f"The messages of stream {stream!r}, as they came in."


def test_a_handler_that_is_named_is_found_without_being_imported(stream, tmp_path, monkeypatch):
    (tmp_path / "billing_of_tests.py").write_text(
        'raise RuntimeError("imported")\n\n\ndef bill(msg, session):\n    """One row per order."""\n'
    )
    monkeypatch.syspath_prepend(tmp_path)

    named = build_drain_asset(DrainSpec(stream=stream, group="billing", handler="billing_of_tests:bill"))
    nowhere = build_drain_asset(DrainSpec(stream=stream, group="billing", handler="no.such.module:bill"))

    (spec,) = named.specs
    (reference,) = spec.metadata["dagster/code_references"].code_references
    assert (reference.file_path, reference.line_number) == (str(tmp_path / "billing_of_tests.py"), 4)
    assert spec.description == "One row per order."
    assert "dagster/code_references" not in next(iter(nowhere.specs)).metadata


def test_a_handler_is_given_the_context_and_resources_that_it_names(bare_spec, resources, instance, enqueue):
    enqueue(2)
    seen = []

    @drain_asset(bare_spec)
    def bills(context: dg.AssetExecutionContext, msg, session, prices: Prices):
        seen.append((context.asset_key.to_user_string(), msg.payload["n"] * prices.factor))

    dg.materialize([bills], resources=resources | {"prices": Prices(factor=10)}, instance=instance)

    assert seen == [("bills", 0), ("bills", 10)]
    assert "prices" in bills.required_resource_keys


def test_the_recovery_of_a_decorated_handler_is_made_of_its_spec(
    bare_spec, resources, instance, enqueue, make_queue
):
    enqueue(2)
    make_queue("dead").read(block_ms=100, count=2)
    seen = []

    @drain_op(bare_spec)
    def bills(msg, session, prices: Prices):
        seen.append(prices.factor)

    job = build_claim_stale_job(spec_of(bills), config=ClaimStaleConfig(min_idle_ms=0))
    job.execute_in_process(resources=resources | {"prices": Prices(factor=7)}, instance=instance)

    assert seen == [7, 7]


def test_a_spec_without_a_handler_says_so_and_one_with_a_handler_cannot_be_decorated(
    bare_spec, spec, resources, instance
):
    with pytest.raises(ValueError, match="has a handler"):
        drain_asset(spec)(note_effect)
    with pytest.raises(ValueError, match="has no handler"):
        dg.materialize([build_drain_asset(bare_spec)], resources=resources, instance=instance)


def hourly(stream, **options):
    """An asset of the hours of 2026, and the entries of two of them."""

    @drain_asset(
        DrainSpec(stream=stream, group="billing"),
        partitions_def=dg.HourlyPartitionsDefinition("2026-01-01-00:00"),
        **options,
    )
    def hours(msg, session):
        note_effect(msg, session)

    return hours


def id_at(hour: int, minute: int = 0) -> str:
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=hour, minutes=minute)
    return f"{int(at.timestamp() * 1000)}-0"


@pytest.fixture
def two_hours(client, stream):
    ids = [id_at(3), id_at(3, 59), id_at(4), id_at(5)]
    for entry_id in ids:
        client.xadd(stream, {"data": '{"n": 1}'}, id=entry_id)
    return ids


def test_a_time_window_is_the_entries_whose_ids_are_in_it_and_again_with_each_materialisation(
    stream, two_hours, resources, instance, effects_seen, client
):
    def handled() -> Any:
        result = dg.materialize(
            [hourly(stream)], partition_key="2026-01-01-03:00", resources=resources, instance=instance
        )
        return result.asset_materializations_for_node("hours")[0].metadata["handled"].value

    assert (handled(), handled()) == (2, 2)
    assert effects_seen() == sorted(two_hours[:2] * 2)
    assert not client.xinfo_groups(stream)


def test_a_backfill_of_time_windows_in_a_single_run_reads_the_stream_once(
    stream, two_hours, resources, instance, effects_seen
):
    asset = hourly(stream, backfill_policy=dg.BackfillPolicy.single_run())
    job = dg.define_asset_job("backfill", [asset])
    defs = dg.Definitions(assets=[asset], jobs=[job], resources=resources)
    tags = {
        "dagster/asset_partition_range_start": "2026-01-01-03:00",
        "dagster/asset_partition_range_end": "2026-01-01-04:00",
    }

    result = defs.resolve_job_def("backfill").execute_in_process(instance=instance, tags=tags)

    events = result.asset_materializations_for_node("hours")
    counts = {event.partition: event.metadata["dagster/row_count"].value for event in events}
    assert counts == {"2026-01-01-03:00": 2, "2026-01-01-04:00": 1}
    assert {event.metadata["handled_in_all_partitions"].value for event in events} == {3}
    assert not {"read", "first_id"} & events[0].metadata.keys()
    assert effects_seen() == two_hours[:3]


def test_a_window_that_failed_or_was_not_read_to_its_end_is_red_and_its_retry_does_the_rest(
    stream, two_hours, resources, instance, effects_seen
):
    config = {"ops": {"hours": {"config": {"max_messages": 1}}}}
    first = dg.materialize(
        [hourly(stream)],
        partition_key="2026-01-01-03:00",
        resources=resources,
        instance=instance,
        run_config=config,
        raise_on_error=False,
    )
    tags = {"dagster/parent_run_id": first.run_id, "dagster/root_run_id": first.run_id}

    second = dg.materialize(
        [hourly(stream)],
        partition_key="2026-01-01-03:00",
        resources=resources,
        instance=instance,
        tags=tags,
    )

    assert not first.success
    metadata = second.asset_materializations_for_node("hours")[0].metadata
    assert (metadata["handled"].value, metadata["skipped"].value) == (1, 1)
    assert effects_seen() == two_hours[:2]


def test_a_key_is_the_messages_that_have_it(stream, resources, instance, queue, effects_seen):
    ids = queue.enqueue_many({"n": n, "country": "de" if n % 2 else "pt"} for n in range(4))
    spec = DrainSpec(stream=stream, group="billing", handler=note_effect)
    countries = dg.StaticPartitionsDefinition(["de", "pt"])
    asset = build_drain_asset(spec, key="by_country", partition_by="country", partitions_def=countries)

    dg.materialize([asset], partition_key="de", resources=resources, instance=instance)

    assert effects_seen() == [ids[1], ids[3]]


def test_a_backfill_of_keys_in_a_single_run_has_the_counts_of_each_key(stream, resources, instance, queue):
    queue.enqueue_many({"n": n, "country": country} for n, country in enumerate(["de", "pt", "de", "fr"]))

    @dataclass
    class Order:
        n: int
        country: str

    def changing(msg, session):
        msg.payload.country = "it"

    asset = build_drain_asset(
        DrainSpec(stream=stream, group="billing", handler=changing, payload=Order),
        key="by_country",
        partition_by="country",
        partitions_def=dg.StaticPartitionsDefinition(["de", "pt"]),
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    job = dg.define_asset_job("backfill", [asset])
    defs = dg.Definitions(assets=[asset], jobs=[job], resources=resources)
    tags = {"dagster/asset_partition_range_start": "de", "dagster/asset_partition_range_end": "pt"}

    result = defs.resolve_job_def("backfill").execute_in_process(instance=instance, tags=tags)

    events = result.asset_materializations_for_node("by_country")
    assert {event.partition: event.metadata["handled"].value for event in events} == {"de": 2, "pt": 1}


def test_a_partition_fails_by_its_own_rule_and_says_so_whatever_fail_when_is(
    stream, two_hours, resources, instance
):
    spec = DrainSpec(
        stream=stream,
        group="billing",
        handler="tests.with_dagster.handlers:refuse_odd",
        config=DrainConfig(fail_when=FailWhen(all_failed=False)),
        fail_when=lambda _report: False,
    )
    asset = build_drain_asset(
        spec, key="hours", partitions_def=dg.HourlyPartitionsDefinition("2026-01-01-00:00")
    )

    result = dg.materialize(
        [asset],
        partition_key="2026-01-01-03:00",
        resources=resources,
        instance=instance,
        raise_on_error=False,
    )

    failure: Any = result.get_step_failure_events()[0].step_failure_data.user_failure_data
    assert "2 of 2 messages failed, ended by idle" in failure.description
    assert "whatever fail_when says" in failure.description
    assert "and its fail_when says so" not in failure.description


@pytest.mark.parametrize("has_named_them", [True, False])
def test_a_handler_that_is_named_is_given_the_resources_that_its_spec_names(
    stream, resources, instance, enqueue, effects_seen, has_named_them
):
    ids = enqueue(2)
    spec = DrainSpec(
        stream=stream,
        group="billing",
        handler="tests.with_dagster.handlers:note_effect_with_prices",
        required_resource_keys=["prices"] if has_named_them else (),
    )
    asset = build_drain_asset(spec, key="bills", required_resource_keys={"other"})
    recovery = build_claim_stale_job(spec)
    more = {"prices": Prices(factor=2), "other": 1}

    result = dg.materialize(
        [asset], resources=resources | more, instance=instance, raise_on_error=has_named_them
    )

    assert result.success == has_named_them
    if has_named_them:
        recovery.execute_in_process(resources=resources | more, instance=instance)
        assert effects_seen() == sorted(ids)
    else:
        failure: Any = result.get_step_failure_events()[0].step_failure_data.error
        assert "takes the resource 'prices', which its step has not" in failure.to_string()


def test_what_a_handler_takes_beside_its_arguments_is_no_resource(stream):
    def bill(msg, session, *args, **options):
        """Takes what comes."""

    spec = DrainSpec(stream=stream, group="billing", handler=bill)

    assert spec.resource_keys == {"redis_streams", "database"}


@pytest.fixture
def growing(client):
    """A topic of two partitions, and a spec that follows it."""
    topic = Topics(client).create(f"orders-{uuid.uuid4().hex[:12]}", partitions=2)
    handler = "tests.with_dagster.handlers:note_effect"
    return TopicDrainSpec(
        topic=topic.name, group="billing", handler=handler, config=TopicDrainConfig(idle_ms=100)
    )


def name_of(asset) -> str:
    return asset.partitions_def.name


def test_a_spec_without_partitions_follows_the_topic_as_it_grows(growing, resources, instance, client):
    asset = build_topic_drain_asset(growing)
    job = dg.define_asset_job("drain_topic", [asset])
    sensor = build_topic_backlog_sensor(growing, job)
    of_redis = {"redis_streams": resources["redis_streams"]}

    def added() -> list[str]:
        context = dg.build_sensor_context(instance=instance, resources=of_redis)
        tick: Any = sensor(context)
        keys = [key for request in tick.dynamic_partitions_requests for key in request.partition_keys]
        if keys:
            instance.add_dynamic_partitions(name_of(asset), keys)
        return keys

    before, unchanged = added(), added()
    Topics(client).grow(growing.topic, partitions=3)

    assert (before, unchanged, added()) == (["0", "1"], [], ["2"])


def test_a_backfill_of_a_topic_in_a_single_run_has_the_counts_of_each_partition(
    growing, resources, instance, client, effects_seen
):
    for partition in (0, 0, 1):
        Producer(client).send_many(growing.topic, [Message(payload={"n": 1}, partition=partition)])
    asset = build_topic_drain_asset(growing, key="paid", backfill_policy=dg.BackfillPolicy.single_run())
    instance.add_dynamic_partitions(name_of(asset), ["0", "1"])
    job = dg.define_asset_job("backfill", [asset])
    defs = dg.Definitions(assets=[asset], jobs=[job], resources=resources)
    tags = {"dagster/asset_partition_range_start": "0", "dagster/asset_partition_range_end": "1"}

    result = defs.resolve_job_def("backfill").execute_in_process(instance=instance, tags=tags)

    events = result.asset_materializations_for_node("paid")
    assert {event.partition: event.metadata["handled"].value for event in events} == {"0": 2, "1": 1}
    assert len(effects_seen()) == 3


def test_a_partition_that_fails_in_a_single_run_stops_no_other_and_is_named(
    growing, resources, instance, client, effects_seen
):
    for partition, n in ((0, 1), (1, 2)):
        Producer(client).send_many(growing.topic, [Message(payload={"n": n}, partition=partition)])
    asset = build_topic_drain_asset(
        replace(growing, handler="tests.with_dagster.handlers:refuse_odd"),
        key="paid",
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    instance.add_dynamic_partitions(name_of(asset), ["0", "1"])
    defs = dg.Definitions(
        assets=[asset], jobs=[dg.define_asset_job("backfill", [asset])], resources=resources
    )
    tags = {"dagster/asset_partition_range_start": "0", "dagster/asset_partition_range_end": "1"}

    result = defs.resolve_job_def("backfill").execute_in_process(
        instance=instance, tags=tags, raise_on_error=False
    )

    # Not of the step's result, which has none of a step that fails.
    events = [
        record.asset_materialization for record in instance.fetch_materializations(asset.key, 9).records
    ]
    failure: Any = result.get_step_failure_events()[0].step_failure_data.user_failure_data
    (row,) = failure.metadata["failed_partitions"].value.records
    assert not result.success
    assert {event.partition: event.metadata["handled"].value for event in events} == {"1": 1}
    assert (row.data["partition"], row.data["retried"], row.data["handled"]) == ("0", 1, 0)
    assert len(effects_seen()) == 1


def test_automation_fires_on_a_new_message_and_on_nothing_else(
    spec, resources, instance, enqueue, queue, stream
):
    bills = build_drain_asset(spec, key="bills", automation_condition=dg.AutomationCondition.eager())
    job = dg.define_asset_job("drain", [bills])
    source = build_stream_asset(stream, group="billing")
    defs = dg.Definitions(assets=[bills, source], jobs=[job], resources=resources)
    sensor = build_backlog_sensor(spec, job)
    of_redis = {"redis_streams": resources["redis_streams"]}
    cursors: dict[str, Any] = {"sensor": None, "automation": None}

    def fires() -> int:
        context = dg.build_sensor_context(instance=instance, resources=of_redis, cursor=cursors["sensor"])
        tick: Any = sensor(context)
        cursors["sensor"] = tick.cursor
        for event in tick.asset_events:
            instance.report_runless_asset_event(event)
        result = dg.evaluate_automation_conditions(defs=defs, instance=instance, cursor=cursors["automation"])
        cursors["automation"] = result.cursor
        return result.total_requested

    enqueue(1)
    fires()
    dg.materialize([bills, source], selection=[bills], resources=resources, instance=instance)
    after_the_drain = fires()
    enqueue(1)
    after_a_message = fires()
    queue.read(block_ms=100)  # lag and pending change, and no message came
    after_a_read = fires()

    assert (after_the_drain, after_a_message, after_a_read) == (0, 1, 0)


def test_a_sensor_without_a_job_observes_and_leaves_the_runs_to_automation(
    spec, resources, instance, enqueue, growing, client
):
    enqueue(1)
    Producer(client).send(growing.topic, {"n": 1}, partition=1)
    sensors = [build_backlog_sensor(spec), build_topic_backlog_sensor(growing)]
    bills = build_drain_asset(spec, key="bills", automation_condition=dg.AutomationCondition.eager())
    dg.Definitions.validate_loadable(dg.Definitions(assets=[bills], sensors=sensors, resources=resources))
    of_redis = {"redis_streams": resources["redis_streams"]}

    ticks: list[Any] = [
        sensor(dg.build_sensor_context(instance=instance, resources=of_redis)) for sensor in sensors
    ]

    assert [tick.run_requests for tick in ticks] == [[], []]
    assert [len(tick.asset_events) for tick in ticks] == [1, 1]
    assert ticks[0].skip_reason.skip_message == (
        f"1 messages wait in {spec.stream!r} for 'billing', and this sensor has no job"
    )
    assert ticks[1].dynamic_partitions_requests[0].partition_keys == ["0", "1"]


def test_automation_without_the_asset_of_the_stream_never_fires_and_the_sensor_says_so(
    spec, resources, instance, enqueue, growing
):
    bills = build_drain_asset(spec, key="bills", automation_condition=dg.AutomationCondition.eager())
    sensor = build_backlog_sensor(spec)
    without = dg.Definitions(assets=[bills], sensors=[sensor], resources=resources)
    complete = dg.Definitions(assets=[bills, build_stream_asset(spec.stream)], resources=resources)
    of_topic = dg.Definitions(assets=[build_topic_drain_asset(growing)], resources=resources)

    def tick(sensor: Any, definitions: dg.Definitions) -> Any:
        redis_alone = {"redis_streams": resources["redis_streams"]}
        return sensor(
            dg.build_sensor_context(instance=instance, resources=redis_alone, definitions=definitions)
        )

    cursor = dg.evaluate_automation_conditions(defs=without, instance=instance).cursor
    enqueue(1)
    ticked = tick(sensor, without)
    for event in ticked.asset_events:
        instance.report_runless_asset_event(event)
    result = dg.evaluate_automation_conditions(defs=without, instance=instance, cursor=cursor)

    assert result.total_requested == 0
    assert "automation never fires" in ticked.skip_reason.skip_message
    assert "add build_stream_asset" in ticked.skip_reason.skip_message
    assert "automation never fires" not in tick(sensor, complete).skip_reason.skip_message
    of_partitions = tick(build_topic_backlog_sensor(growing), of_topic)
    assert "add build_topic_asset" in of_partitions.skip_reason.skip_message


def test_automation_does_not_fire_for_a_stream_that_never_had_a_message(
    spec, resources, instance, client, stream
):
    client.delete(stream)
    bills = build_drain_asset(spec, key="bills", automation_condition=dg.AutomationCondition.eager())
    job = dg.define_asset_job("drain", [bills])
    defs = dg.Definitions(assets=[bills, build_stream_asset(stream)], jobs=[job], resources=resources)
    sensor = build_backlog_sensor(spec, job)
    of_redis = {"redis_streams": resources["redis_streams"]}
    # As a daemon does from the first moment on, before anything was observed.
    cursor = dg.evaluate_automation_conditions(defs=defs, instance=instance).cursor

    def fires() -> int:
        nonlocal cursor
        tick: Any = sensor(dg.build_sensor_context(instance=instance, resources=of_redis))
        for event in tick.asset_events:
            instance.report_runless_asset_event(event)
        result = dg.evaluate_automation_conditions(defs=defs, instance=instance, cursor=cursor)
        cursor = result.cursor
        return result.total_requested

    before, still = fires(), fires()
    client.xadd(stream, {"data": "{}"})

    assert (before, still, fires()) == (0, 0, 1)


def test_automation_of_a_topic_fires_for_the_partition_that_got_a_message(
    growing, resources, instance, client
):
    condition = dg.AutomationCondition.eager()
    paid = build_topic_drain_asset(replace(growing, partitions=2), key="paid", automation_condition=condition)
    job = dg.define_asset_job("drain", [paid])
    source = build_topic_asset(replace(growing, partitions=2))
    defs = dg.Definitions(assets=[paid, source], jobs=[job], resources=resources)
    sensor = build_topic_backlog_sensor(replace(growing, partitions=2), job)
    of_redis = {"redis_streams": resources["redis_streams"]}
    cursor = None

    def fires() -> set[str | None]:
        nonlocal cursor
        tick: Any = sensor(dg.build_sensor_context(instance=instance, resources=of_redis))
        for event in tick.asset_events:
            instance.report_runless_asset_event(event)
        result = dg.evaluate_automation_conditions(defs=defs, instance=instance, cursor=cursor)
        cursor = result.cursor
        return set(result.get_requested_partitions(paid.key))

    before = fires()
    Producer(client).send(growing.topic, {"n": 1}, partition=1)

    assert (before, fires(), fires()) == (set(), {"1"}, set())


def test_a_topic_is_an_observable_asset_of_its_partitions(growing, resources, instance, client):
    Producer(client).send_many(growing.topic, [Message(payload={"n": 1}, partition=1)])
    asset = build_topic_asset(growing)
    partitions: Any = asset.partitions_def
    key = stream_asset_key(growing.topic)
    defs = dg.Definitions(assets=[asset], jobs=[dg.define_asset_job("observe", [key])], resources=resources)

    result = defs.resolve_job_def("observe").execute_in_process(instance=instance)

    events = [
        event.asset_observation_data.asset_observation for event in result.get_asset_observation_events()
    ]
    seen = {event.partition: event.tags["dagster/data_version"] for event in events}
    # Partition 0 never had a message: automation would take its first observation for news.
    assert len(events) == 1
    assert seen.keys() == {"1"}
    assert seen["1"] != "0-0"
    assert events[0].metadata["lag"].value == 1
    assert instance.get_dynamic_partitions(partitions.name) == ["0", "1"]
