"""Document 004, sentence by sentence: tasks. A test is named after its section and its sentence."""

from __future__ import annotations

import json
import re
import threading
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY, CollectorRegistry

from conquiet.settings import Settings
from conquiet.tasks import (
    Beat,
    BeatCollector,
    BeatConfig,
    TaskApp,
    TaskArgumentsError,
    TaskCollector,
    TaskContext,
    TaskFailedError,
    WorkerConfig,
    chord,
    clock,
    group,
    scripts,
)
from conquiet.tasks.keys import GROUP, BeatKeys
from conquiet.tasks.worker.heartbeat import Heartbeat
from tests.conformance.test_peers_stem import watched
from tests.eventually import eventually
from tests.spans import Spans, trace_of
from tests.with_redis.tasks.beats import set_clock
from tests.with_redis.tasks.conftest import QUICK, StartWorker
from tests.with_redis.tasks.test_limits import spin

PATIENCE_S = 600.0
ROOT = Path(__file__).parents[2]


def entry_of(app: TaskApp) -> dict[str, Any]:
    """The one entry of the default queue, as a plain reader decodes it."""
    entries: Any = app.client.xrange(app.keys("default").streams[5])
    [(_, fields)] = entries
    assert list(fields) == [b"data"]
    envelope: dict[str, Any] = json.loads(fields[b"data"])
    return envelope


def history(handle: Any) -> list[str]:
    status = handle.status()
    assert status is not None
    return [step.state for step in status.history]


# Executive summary


def test_summary_at_least_once_delivery_with_configurable_retries_and_time_limits(
    app: TaskApp, start: StartWorker
) -> None:
    @app.task(max_retries=2, retry=QUICK, soft_time_limit_s=PATIENCE_S)
    def fail(limit: bool = False) -> None:
        if limit:
            spin()
        raise ValueError("no")

    start()
    handles = [fail.enqueue(), fail.with_options(max_retries=0).enqueue()]
    handles.append(fail.with_options(max_retries=0, soft_time_limit_s=0.05).enqueue(limit=True))
    for handle in handles:
        with pytest.raises(TaskFailedError):
            handle.result(PATIENCE_S)

    seen = [handle.status() for handle in handles]
    assert [one and one.attempt for one in seen] == [2, 0, 0]
    assert "SoftTimeLimitError" in str(seen[2] and seen[2].error)


def test_summary_opentelemetry_first_observability(app: TaskApp, start: StartWorker, spans: Spans) -> None:
    @app.task
    def traced() -> None: ...

    start()
    traced.enqueue().result(PATIENCE_S)

    # Without anything but OpenTelemetry's own set-up.
    eventually(lambda: spans.all("process"))
    assert (spans.one("process").attributes or {})["messaging.system"] == "redis"


# Goals


def test_goal_a_production_ready_broker_and_result_backend(app: TaskApp, start: StartWorker) -> None:
    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    start(concurrency=4)
    results = [handle.result(PATIENCE_S) for handle in add.enqueue_many({"a": n, "b": 1} for n in range(300))]

    assert results == list(range(1, 301))
    # What is done is deleted, and what is known of it expires.
    keys = app.keys("default")
    eventually(lambda: not app.client.xlen(keys.streams[5]))
    ttls = [app.client.ttl(record) for record in app.client.scan_iter(match=f"{keys.record('*')}")]
    assert len(ttls) == 300
    assert all(0 < ttl <= 86_400 for ttl in ttls)


def test_goal_built_in_observability_and_operational_tooling() -> None:
    for part in ("metrics", "spans", "log"):
        assert part in (ROOT / "docs/observability.md").read_text().lower()
    for name in ("started", "succeeded", "failed", "retried"):
        assert f"conquiet_tasks_{name}" in {metric.name for metric in REGISTRY.collect()}
    commands = (ROOT / "docs/cli.md").read_text()
    for command in ("conquiet worker", "conquiet tasks", "conquiet workers", "conquiet queues"):
        assert command in commands


# System overview


def test_overview_the_client_enqueues_with_a_facade(app: TaskApp) -> None:
    handle = app.enqueue("shop.bill", {"order": 7})

    assert entry_of(app)["id"] == handle.id


def test_overview_the_broker_stores_envelopes_and_delivers_them_to_workers(
    app: TaskApp, start: StartWorker
) -> None:
    @app.task
    def whoami(ctx: TaskContext) -> str:
        return ctx.id

    handle = whoami.enqueue()
    assert entry_of(app)["name"] == whoami.name

    start()
    assert handle.result(PATIENCE_S) == handle.id


def test_overview_the_result_backend_persists_status_and_supports_chords_and_groups(
    app: TaskApp, start: StartWorker
) -> None:
    @app.task
    def double(number: int) -> int:
        return 2 * number

    @app.task
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    members = [double.call(number) for number in range(3)]
    both, alone = chord(members, total.partial()).enqueue(), group(members).enqueue()
    assert app.client.type(app.keys("default").record(both.id)) in (b"hash", b"none")
    start()

    assert both.result(PATIENCE_S) == 6
    assert alone.results(PATIENCE_S) == [0, 2, 4]
    assert app.client.hget(app.keys("default").record(both.id), "state") == b"succeeded"


def test_overview_beat_schedules_recurring_tasks_via_a_sorted_set(app: TaskApp) -> None:
    app.schedule("often", "shop.bill", {"order": 7}, every=timedelta(hours=1))
    beat = Beat(app)
    beat.apply_declared()
    due = BeatKeys(app.namespace).due
    before = app.client.zscore(due, "often")
    assert before is not None

    set_clock(datetime.fromtimestamp(before / 1000 + 1, UTC))
    try:
        assert beat.tick().claimed == 1
    finally:
        clock.set_clock(None)

    assert entry_of(app)["name"] == "shop.bill"
    # It is there again, for its next time.
    after = app.client.zscore(due, "often")
    assert after is not None
    assert after > before


def test_goal_reliable_enqueue_execute_result_flow(app: TaskApp, start: StartWorker) -> None:
    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    start()

    assert add.enqueue(1, 2).result(PATIENCE_S) == 3


# Message schema


def test_schema_id_is_generated_via_timestamp_and_random_suffix(app: TaskApp) -> None:
    before = datetime.now(UTC)
    ids = [app.enqueue("any").id for _ in range(100)]

    moments = [datetime.fromtimestamp(int(one.partition("-")[0]) / 1000, UTC) for one in ids]
    assert len(set(ids)) == 100
    assert all(before - timedelta(seconds=1) < moment < datetime.now(UTC) for moment in moments)
    assert all(re.fullmatch(r"\d+-\d+", one) for one in ids)


def test_schema_twelve_fields_with_their_types(app: TaskApp) -> None:
    options: dict[str, Any] = {
        "headers": {"tenant": "a"},
        "max_retries": 7,
        "visibility_timeout_s": 30,
        "meta": {"batch": 5},
    }
    handle = app.enqueue("shop.bill", {"order_id": 7}, **options)

    envelope = entry_of(app)
    enqueued_at = datetime.fromisoformat(envelope.pop("enqueuedAt"))
    assert enqueued_at.utcoffset() == timedelta(0)
    assert envelope == {
        "id": handle.id,
        "name": "shop.bill",
        "args": {"order_id": 7},
        "headers": {"tenant": "a"},
        "notBefore": None,
        "priority": 5,
        "attempt": 0,
        "maxRetries": 7,
        "visibilityTimeout": 30_000,
        "queue": "default",
        "meta": {"schemaVersion": 1, "batch": 5},
    }


def test_schema_name_is_the_qualified_task_name(app: TaskApp) -> None:
    @app.task
    def bill() -> None: ...

    bill.enqueue()

    assert bill.name == f"{__name__}.{bill.function.__qualname__}"
    assert entry_of(app)["name"] == bill.name


def test_schema_args_are_json_serialisable(app: TaskApp) -> None:
    @app.task
    def bill(order_id, amounts) -> None: ...

    for not_json in (object(), {1, 2}, b"bytes", float("nan"), {1: "a number as a key"}, "\ud800"):
        with pytest.raises(TaskArgumentsError):
            bill.enqueue(7, not_json)
    bill.enqueue(7, amounts=[1.5, None, {"a": True}])

    assert entry_of(app)["args"] == {"order_id": 7, "amounts": [1.5, None, {"a": True}]}


def test_schema_headers_are_metadata_as_trace_and_tenant(app: TaskApp, spans: Spans) -> None:
    app.enqueue("any", headers={"tenant": "a"})

    headers = entry_of(app)["headers"]
    assert headers["tenant"] == "a"
    assert headers["traceparent"].split("-")[1] == trace_of(spans.one("send"))


def test_schema_enqueued_at_is_the_time_of_creation_in_utc(app: TaskApp) -> None:
    before = datetime.now(UTC)
    app.enqueue("any")

    text = entry_of(app)["enqueuedAt"]
    assert before - timedelta(milliseconds=1) <= datetime.fromisoformat(text) <= datetime.now(UTC)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)", text)


def test_schema_priority_orders_what_waits_and_is_from_0_to_9(app: TaskApp, start: StartWorker) -> None:
    order: list[int] = []

    @app.task
    def note(priority: int) -> None:
        order.append(priority)

    handles = [note.with_options(priority=one).enqueue(one) for one in (5, 0, 9)]
    start()
    for handle in handles:
        handle.result(PATIENCE_S)

    assert order == [9, 5, 0]
    with pytest.raises(ValueError, match="priority"):
        note.with_options(priority=10)


def test_schema_max_retries_is_how_often_after_the_first_attempt(app: TaskApp, start: StartWorker) -> None:
    attempts: list[int] = []

    @app.task(retry=QUICK)
    def fail(ctx: TaskContext) -> None:
        attempts.append(ctx.attempt)
        raise ValueError

    start()
    with pytest.raises(TaskFailedError):
        fail.with_options(max_retries=2).enqueue().result(PATIENCE_S)

    assert attempts == [0, 1, 2]


def test_schema_visibility_timeout_is_a_lease_duration_hint_in_ms(app: TaskApp) -> None:
    app.enqueue("rare", visibility_timeout_s=3_600)
    keys = app.keys("default")

    assert entry_of(app)["visibilityTimeout"] == 3_600_000
    # Also a dead worker's task is not free before it was pending for so long.
    scripts.settle_and_read(app.client, keys, "died", (), count=1, max_bytes=1 << 20)
    eventually(lambda: scripts.take_over(app.client, keys, dead=["died"]))
    read = scripts.settle_and_read(app.client, keys, "other", (), count=1, max_bytes=1 << 20)
    assert read.entries == []
    assert read.next_due_ms is not None
    assert 3_500_000 < read.next_due_ms <= 3_600_000


def test_schema_queue_is_a_logical_name(app: TaskApp, start: StartWorker) -> None:
    @app.task(queue="mail")
    def work(ctx: TaskContext) -> str:
        return ctx.queue

    start(queues=("mail", "other"))

    assert work.enqueue().result(PATIENCE_S) == "mail"
    assert work.with_options(queue="other").enqueue().result(PATIENCE_S) == "other"


def test_schema_meta_is_the_users_and_the_systems(app: TaskApp, start: StartWorker) -> None:
    @app.task
    def read(ctx: TaskContext) -> dict[str, Any]:
        return dict(ctx.meta)

    start()

    assert read.with_options(meta={"batch": 5}).enqueue().result(PATIENCE_S) == {
        "schemaVersion": 1,
        "batch": 5,
    }


def test_schema_not_before_is_an_optional_eta(app: TaskApp) -> None:
    eta = datetime.now(UTC) + timedelta(hours=1)
    handle = app.enqueue("any", eta=eta)

    item: Any = app.client.hget(app.keys("default").delayed_items, handle.id)
    not_before = datetime.fromisoformat(json.loads(item.partition(b":")[2])["notBefore"])
    assert abs(not_before - eta) < timedelta(milliseconds=2)
    score: Any = app.client.zscore(app.keys("default").delayed, handle.id)
    assert abs(score / 1000 - eta.timestamp()) < 5


def test_schema_attempt_is_0_based(app: TaskApp, start: StartWorker) -> None:
    @app.task(max_retries=1, retry=QUICK)
    def attempt(ctx: TaskContext) -> int:
        if ctx.attempt == 0:
            raise ValueError
        return ctx.attempt

    start()

    assert attempt.enqueue().result(PATIENCE_S) == 1


# Task state model


def test_states_each_transition_is_recorded_with_timestamps_and_metadata(
    app: TaskApp,
    start: StartWorker,
) -> None:
    @app.task(max_retries=1, retry=QUICK)
    def fail() -> None:
        raise ValueError("no")

    start()
    handle = fail.enqueue()
    with pytest.raises(TaskFailedError):
        handle.result(PATIENCE_S)

    status = handle.status()
    assert status is not None
    assert history(handle) == ["queued", "running", "retried", "running", "failed", "dead_lettered"]
    assert sorted(step.at for step in status.history) == [step.at for step in status.history]
    assert [step.facts.get("attempt") for step in status.history] == [None, 0, 0, 1, 1, 1]
    assert all("worker" in step.facts for step in status.history[1:])
    assert status.history[2].facts["error"] == "ValueError: no"


def test_states_queued_running_succeeded(app: TaskApp, start: StartWorker) -> None:
    @app.task
    def fine() -> None: ...

    start()
    handle = fine.enqueue()
    handle.result(PATIENCE_S)

    assert history(handle) == ["queued", "running", "succeeded"]


def test_states_retries_increment_attempt_with_backoff(app: TaskApp, start: StartWorker) -> None:
    # "re-enqueue" of the document would lose a task between ack and enqueue: it stays in its place.
    begun: list[tuple[int, datetime]] = []

    @app.task(max_retries=2, retry=QUICK.__class__(backoff="fixed", base_delay_ms=50, max_delay_ms=50))
    def again(ctx: TaskContext) -> None:
        begun.append((ctx.attempt, datetime.now(UTC)))
        if ctx.attempt < 2:
            raise ValueError

    start()
    again.enqueue().result(PATIENCE_S)

    assert [attempt for attempt, _ in begun] == [0, 1, 2]
    gaps = [later - earlier for (_, earlier), (_, later) in pairwise(begun)]
    assert all(gap >= timedelta(milliseconds=45) for gap in gaps)


# Delivery semantics


def test_delivery_at_least_once_with_idempotent_handler_recommendation(
    app: TaskApp, start: StartWorker
) -> None:
    attempts: list[tuple[str, int]] = []

    @app.task
    def note(ctx: TaskContext) -> None:
        attempts.append((ctx.id, ctx.attempt))

    handle = note.enqueue()
    # A worker that has read it, and may have run it, dies before it acks.
    scripts.settle_and_read(app.client, app.keys("default"), "died", (), count=1, max_bytes=1 << 20)
    start()
    handle.result(PATIENCE_S)

    # Delivered again with the same id, by which a function can know that.
    assert attempts == [(handle.id, 1)]
    assert "idempotent" in (ROOT / "docs/tasks.md").read_text()


def test_delivery_workers_ack_after_successful_execution_and_state_write(
    app: TaskApp, start: StartWorker
) -> None:
    pending_while_it_runs: list[int] = []
    keys = app.keys("default")

    @app.task
    def look() -> None:
        pending_while_it_runs.append(app.client.xpending(keys.streams[5], GROUP)["pending"])

    start()
    with watched(app.client) as steps:
        handle = look.enqueue()
        handle.result(PATIENCE_S)

    assert pending_while_it_runs == [1]
    [step] = [step for step in steps if any(command.startswith("XACK ") for command in step)]
    [ack] = [number for number, command in enumerate(step) if command.startswith("XACK ")]
    writes = [n for n, command in enumerate(step) if command.startswith(f"HSET {keys.record(handle.id)} ")]
    assert writes
    assert "succeeded" in step[writes[-1]]
    assert max(writes) < ack


def test_delivery_failed_tasks_are_dead_lettered_when_retries_are_exhausted(
    app: TaskApp,
    start: StartWorker,
) -> None:
    @app.task(max_retries=0)
    def fail() -> None:
        raise KeyError("x")

    start()
    handle = fail.enqueue()
    with pytest.raises(TaskFailedError):
        handle.result(PATIENCE_S)

    letters: Any = app.client.xrange(app.keys("default").dead_letters)
    letter = json.loads(letters[0][1][b"data"])
    assert (letter["originalMessageId"], letter["errorType"]) == (handle.id, "KeyError")
    assert letter["envelope"]["name"] == fail.name


def test_delivery_leases_are_renewed_at_half_intervals_and_unacked_tasks_reclaimed(
    app: TaskApp,
    start: StartWorker,
) -> None:
    @app.task
    def any_task() -> str:
        return "done"

    handle = any_task.enqueue()
    keys = app.keys("default")
    scripts.settle_and_read(app.client, keys, "died", (), count=1, max_bytes=1)
    config = WorkerConfig(pool="thread", heartbeat_ttl_s=2)
    heartbeat = Heartbeat(app, config, ())
    start(heartbeat_ttl_s=2)

    assert handle.result(PATIENCE_S) == "done"
    # The next round is after half of the lease, and each one moves its end on.
    assert heartbeat.round(threading.Event()) == config.lease_ms / 1000 / 2
    heartbeat.close()
    consumers: Any = app.client.zrange(keys.heartbeats, 0, -1)
    assert len(consumers) == 1
    lease_ends: Any = app.client.zscore(keys.heartbeats, consumers[0])
    eventually(lambda: app.client.zscore(keys.heartbeats, consumers[0]) > lease_ends)


# Prefetch


def test_prefetch_is_concurrency_times_a_multiplier_of_2_by_default(
    app: TaskApp,
    start: StartWorker,
) -> None:
    assert WorkerConfig().prefetch_multiplier == 2
    begun, may_end = threading.Semaphore(0), threading.Event()

    @app.task
    def block() -> None:
        begun.release()
        may_end.wait(PATIENCE_S)

    block.enqueue_many({} for _ in range(20))
    start(concurrency=2)
    for _ in range(2):
        assert begun.acquire(timeout=PATIENCE_S)

    def reserved() -> int:
        consumers = app.client.xinfo_consumers(app.keys("default").streams[5], GROUP)
        return sum(one["pending"] for one in consumers if not one["name"].startswith(b"@"))

    eventually(lambda: reserved() == 4)
    may_end.set()


# Adapters


def test_adapter_result_backend_is_a_redis_hash_with_a_ttl(app: TaskApp, start: StartWorker) -> None:
    @app.task(result_ttl_s=100)
    def five() -> int:
        return 5

    start()
    handle = five.enqueue()
    handle.result(PATIENCE_S)

    key = app.keys("default").record(handle.id)
    assert app.client.type(key) == b"hash"
    assert app.client.hget(key, "result") == b"5"
    assert 0 < app.client.ttl(key) <= 100


def test_adapter_result_backend_aggregates_groups(app: TaskApp, start: StartWorker) -> None:
    @app.task
    def square(number: int) -> int:
        return number * number

    start()

    assert group(square.call(n) for n in range(5)).enqueue().results(PATIENCE_S) == [0, 1, 4, 9, 16]


# Configuration model


def test_configuration_code_overrides_the_config_file_overrides_the_environment(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONQUIET_REDIS_URL", "redis://of-environment:1/0")
    assert TaskApp().settings.redis_url == "redis://of-environment:1/0"

    (tmp_path / "conquiet.toml").write_text('redis_url = "redis://of-file:1/0"')
    assert TaskApp().settings.redis_url == "redis://of-file:1/0"
    assert TaskApp("redis://of-code:1/0").settings.redis_url == "redis://of-code:1/0"
    assert TaskApp(Settings(redis_url="redis://given:1/0")).settings.redis_url == "redis://given:1/0"


# Observability


def test_observability_metrics_of_tasks(app: TaskApp, start: StartWorker) -> None:
    @app.task(name=f"{app.namespace}.counted")
    def counted() -> None: ...

    start()
    counted.enqueue().result(PATIENCE_S)

    labels = {"task": counted.name, "queue": "default"}
    for name in ("enqueued", "started", "succeeded"):
        eventually(
            lambda name=name: REGISTRY.get_sample_value(f"conquiet_tasks_{name}_total", labels) == 1  # type: ignore[misc]
        )
    assert REGISTRY.get_sample_value("conquiet_tasks_duration_seconds_count", labels) == 1
    eventually(lambda: REGISTRY.get_sample_value("conquiet_tasks_heartbeats_total", {"queue": "default"}))


def test_observability_worker_inflight_queue_depth_and_lease_renewed_are_metrics(
    app: TaskApp, start: StartWorker
) -> None:
    registry = CollectorRegistry(auto_describe=True)
    registry.register(TaskCollector(app.client, app.namespace))
    app.enqueue("any", queue="unread")

    start(queues=(app.namespace,))

    labels = {"queue": app.namespace}
    assert registry.get_sample_value("conquiet_tasks_queue_depth", {"queue": "unread"}) == 1
    eventually(lambda: REGISTRY.get_sample_value("conquiet_tasks_heartbeats_total", labels))
    assert REGISTRY.get_sample_value("conquiet_tasks_in_flight", labels) == 0


def test_adapters_the_scheduler_is_a_beat_on_a_sorted_set(app: TaskApp) -> None:
    app.schedule("bill", "shop.bill", {"order": 7}, at=datetime.now(UTC))
    beat = Beat(app)
    beat.apply_declared()
    due = BeatKeys(app.namespace).due
    assert app.client.type(due) == b"zset"
    assert app.client.zrange(due, 0, -1) == [b"bill"]

    assert beat.tick().claimed == 1

    assert entry_of(app)["name"] == "shop.bill"
    assert app.client.exists(due) == 0


def test_observability_beat_has_metrics(app: TaskApp) -> None:
    app.schedule("bill", "shop.bill", at=datetime.now(UTC))
    # It still leads when it is asked, however long the machine takes.
    beat = Beat(app, BeatConfig(lease_ttl_s=3_600))
    beat.apply_declared()
    beat.tick()
    registry = CollectorRegistry()
    registry.register(BeatCollector(app.client, app.namespace))

    labels = {"namespace": app.namespace}
    assert REGISTRY.get_sample_value("conquiet_beat_enqueued_total", labels) == 1
    assert REGISTRY.get_sample_value("conquiet_beat_drift_seconds_count", labels) == 1
    assert REGISTRY.get_sample_value("conquiet_beat_leading", labels) == 1
    assert registry.get_sample_value("conquiet_beat_leaders", labels) == 1
    assert registry.get_sample_value("conquiet_beat_schedules", labels) == 1
    assert registry.get_sample_value("conquiet_beat_due", labels) == 0


def test_observability_the_three_objectives_are_alert_rules() -> None:
    page = yaml.safe_load((Path(__file__).parents[2] / "deploy/prometheus/alerts.yml").read_text())
    rules = {rule["alert"]: rule for group in page["groups"] for rule in group["rules"]}
    success, slow, deep = (
        rules[name] for name in ("ConquietTaskSuccessRate", "ConquietTasksSlow", "ConquietTaskQueueDeep")
    )

    assert re.search(r"failed_total\[15m\].*/.*succeeded_total\[15m\].* > 0\.005$", success["expr"])
    assert re.search(r"quantile\(0\.95, .*duration_seconds_bucket\[5m\].* > 3$", slow["expr"])
    assert re.search(r'queue_depth\{queue="default"\}\) >= 100$', deep["expr"])
    assert deep["for"] == "10m"


def test_observability_traces_enqueue_consume_execute_with_w3c_context(
    app: TaskApp,
    start: StartWorker,
    spans: Spans,
) -> None:
    @app.task
    def traced() -> None: ...

    start()
    traced.enqueue().result(PATIENCE_S)

    eventually(lambda: spans.all("process"))
    assert trace_of(spans.one("process")) == trace_of(spans.one("send"))
    assert trace_of(spans.one("receive")) == trace_of(spans.one("send"))
