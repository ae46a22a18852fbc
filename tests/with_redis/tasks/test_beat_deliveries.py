"""The outbox of a beat: what is in it is delivered once and in order, and holds up nobody else."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis

from conquiet import QueueError
from conquiet.mq import Topics
from conquiet.tasks import MessageTarget, TaskApp
from conquiet.tasks.beat import Beat, BeatConfig, deliveries, queue_registry
from conquiet.tasks.keys import BeatKeys
from tests.with_redis.tasks.beats import (
    HOUR,
    NOON,
    RETRY,
    beat_of,
    nothing,
    planned,
    queued,
    set_clock,
    tick_all,
)

pytestmark = pytest.mark.usefixtures("at_noon")


def topic_of(app: TaskApp) -> str:
    return f"{app.namespace}-topic"


def to_topic(app: TaskApp) -> MessageTarget:
    return MessageTarget(kind="topic", name=topic_of(app), payload={})


def to_stream(app: TaskApp) -> MessageTarget:
    return MessageTarget(kind="stream", name=f"{app.namespace}-stream", payload={})


def sent(app: TaskApp, target: MessageTarget) -> int:
    return int(app.client.xlen(target.name))


def unanswered() -> QueueError:
    error = QueueError("enqueue", stream="s", group=None, reason="no route")
    error.__cause__ = redis.ConnectionError("no route")
    return error


class Refusing:
    """In place of `deliver_task`: refuses the schedules that it names, and writes down who was tried."""

    def __init__(self, app: TaskApp, refused: set[str], error: Exception) -> None:
        self._deliver = app.schedules.store.deliver_task
        self._refused = refused
        self._error = error
        self.tried: list[str] = []

    def __call__(self, occurrence: Any) -> bool:
        self.tried.append(occurrence.schedule)
        if occurrence.schedule in self._refused:
            raise self._error
        return self._deliver(occurrence)


def clustered(app: TaskApp, *names: str) -> Any:
    """Schedules whose tasks, each in a queue of its own, go through the outbox; their store."""
    for name in names:
        task = app.task(name=name, ignore_result=True, queue=f"of-{name}")(nothing)
        app.schedule(name, task, every=HOUR, catch_up="all")
    store: Any = app.schedules.store
    store._is_cluster = True
    return store


def test_an_item_of_the_outbox_that_cannot_be_read_does_not_hold_up_others(app: TaskApp) -> None:
    target = to_stream(app)
    app.schedule("s", target, every=HOUR)
    outbox = BeatKeys(app.namespace).outbox
    for item in ({"x": "y"}, {"schedule": "other", "kind": "task", "priority": "high"}, {"x": "z"}):
        app.client.xadd(outbox, item)  # type: ignore[arg-type]
    beat = Beat(app, BeatConfig(name="b", batch_size=1))
    beat.apply_declared()
    set_clock(NOON + HOUR)
    errors = 0
    while (report := beat.tick()).wait_ms == 0:
        errors += report.errors

    assert sent(app, target) == 1
    assert errors == 2
    assert app.schedules.stats().pending == 3


def test_what_is_due_is_claimed_before_anything_is_delivered(
    app: TaskApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = clustered(app, "s", "t")
    app.schedules.apply(app.new_schedule("t", "t", every=HOUR, start=NOON + 2 * HOUR))
    app.schedules.declared.pop("t")
    beat = beat_of(app)
    set_clock(NOON + HOUR)
    beat.tick()
    steps = []

    def noting(step: str, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def called(argument: Any) -> Any:
            steps.append(step)
            return call(argument)

        return called

    monkeypatch.setattr(store, "claim", noting("claim", store.claim))
    monkeypatch.setattr(store, "deliver_task", noting("deliver", store.deliver_task))
    set_clock(NOON + 2 * HOUR)
    beat.tick()

    assert steps == ["claim", "deliver"]


def test_after_a_server_has_not_answered_nothing_more_is_sent_to_it_and_others_get_theirs(
    app: TaskApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = clustered(app, "a", "b", "c")
    refusing = Refusing(app, {"a", "b"}, unanswered())
    monkeypatch.setattr(store, "deliver_task", refusing)
    servers = {app.keys("of-a").meta: "down", app.keys("of-b").meta: "down", app.keys("of-c").meta: "up"}
    monkeypatch.setattr(deliveries, "server_of", lambda _client, key: servers[key])
    beat = beat_of(app)
    set_clock(NOON + HOUR)
    tick_all(beat)

    assert len(refusing.tried) == 2
    assert queued(app, "of-c") == [planned(NOON + HOUR, "c")]
    assert all("no route" in (app.schedules.get(name).stored.error or "") for name in "ab")

    monkeypatch.undo()
    set_clock(NOON + HOUR + RETRY)
    tick_all(beat)
    assert [queued(app, f"of-{name}") for name in "ab"] == [[planned(NOON + HOUR, name)] for name in "ab"]
    assert app.schedules.get("a").stored.error is None


def test_deliveries_end_after_a_third_of_the_lease_and_go_on_with_the_next_tick(
    app: TaskApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = clustered(app, "a", "b", "c")
    beat = beat_of(app)
    set_clock(NOON + HOUR)
    beat.tick()
    passed = iter(range(0, 1_000, 4))
    monkeypatch.setattr(deliveries, "monotonic", lambda: float(next(passed)))
    reports = [beat.tick() for _ in range(3)]

    assert [report.delivered for report in reports] == [1, 1, 1]
    assert [report.wait_ms for report in reports] == [0, 0, 0]
    assert store.stats().pending == 0


def test_what_cannot_be_delivered_is_tried_again_after_five_seconds_and_not_before(
    app: TaskApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = clustered(app, "s")
    refusing = Refusing(app, {"s"}, QueueError("enqueue", stream="s", group=None, reason="full"))
    monkeypatch.setattr(store, "deliver_task", refusing)
    beat = beat_of(app)
    set_clock(NOON + HOUR)
    tick_all(beat)
    for milliseconds in (1_000, 4_999):
        set_clock(NOON + HOUR + timedelta(milliseconds=milliseconds))
        tick_all(beat)
    assert refusing.tried == ["s"]

    set_clock(NOON + HOUR + RETRY)
    tick_all(beat)
    assert refusing.tried == ["s", "s"]
    # Set back: not until the clock has caught up.
    set_clock(NOON)
    tick_all(beat)
    assert refusing.tried == ["s", "s", "s"]


def test_a_schedule_that_cannot_be_delivered_is_not_claimed_beyond_a_bound_and_nothing_of_it_is_lost(
    app: TaskApp,
) -> None:
    app.schedule("bad", to_topic(app), every=HOUR, catch_up="all")
    app.schedule("good", to_stream(app), every=HOUR, catch_up="all")
    beat = Beat(app, BeatConfig(name="b", max_undelivered=3))
    beat.apply_declared()
    for hour in range(1, 10):
        set_clock(NOON + hour * HOUR)
        tick_all(beat)

    assert sent(app, to_stream(app)) == 9
    assert app.schedules.stats().pending == 3
    kept = app.schedules.get("bad")
    assert kept.next_at == NOON + 4 * HOUR
    assert "3 occurrences are not delivered yet: TopicError" in (kept.stored.error or "")

    Topics(app.client).create(topic_of(app))
    for step in range(3):
        set_clock(NOON + 9 * HOUR + step * RETRY)
        tick_all(beat)
    assert sum(one.is_new for one in app.schedules.history("bad")) == 9
    assert app.schedules.stats().pending == 0
    assert app.schedules.get("bad").stored.error is None


def test_a_beat_does_not_wait_while_the_outbox_has_more(app: TaskApp) -> None:
    app.schedule("bad", to_topic(app), every=HOUR)
    app.schedule("good", to_stream(app), every=HOUR)
    beat = Beat(app, BeatConfig(name="b", batch_size=1))
    beat.apply_declared()
    set_clock(NOON + HOUR)
    tick_all(beat)

    assert sent(app, to_stream(app)) == 1


def test_a_failure_of_a_schedule_that_was_deleted_is_logged(
    app: TaskApp, caplog: pytest.LogCaptureFixture
) -> None:
    app.schedule("bad", to_topic(app), every=HOUR)
    beat = beat_of(app)
    set_clock(NOON + HOUR)
    beat.tick()
    app.schedules.delete("bad")
    caplog.clear()
    beat.tick()

    assert "an occurrence of schedule bad could not be delivered" in caplog.text


def test_on_a_cluster_a_failover_that_lost_a_claim_doubles_no_task_without_a_result(app: TaskApp) -> None:
    clustered(app, "s")
    beat = beat_of(app)
    keys, client = BeatKeys(app.namespace), app.client
    before: Any = client.hgetall(keys.schedule("s"))
    set_clock(NOON + HOUR)
    tick_all(beat)

    client.delete(keys.schedule("s"))
    client.hset(keys.schedule("s"), mapping=before)
    client.zadd(keys.due, {"s": int(before[b"planned"])})
    tick_all(beat)
    assert queued(app, "of-s") == [planned(NOON + HOUR)]

    set_clock(NOON + 2 * HOUR)
    tick_all(beat)
    assert queued(app, "of-s") == [planned(NOON + HOUR), planned(NOON + 2 * HOUR)]


def test_on_a_cluster_a_schedule_that_is_created_again_may_have_the_same_time_once_more(app: TaskApp) -> None:
    clustered(app, "s")
    app.schedules.declared.clear()
    once = app.new_schedule("s", app.tasks["s"], at=NOON, misfire_grace_s=3_600)
    beat = beat_of(app)
    for minute in (1, 2):
        set_clock(NOON + timedelta(minutes=minute))
        app.schedules.apply(once)
        tick_all(beat)
        app.schedules.delete("s")

    assert queued(app, "of-s") == [planned(NOON), planned(NOON)]


def test_a_key_of_another_type_is_tried_again_later_and_does_not_hold_up_others(app: TaskApp) -> None:
    app.schedule("s", "any", every=HOUR)
    app.schedule("t", "any", every=HOUR)
    beat = beat_of(app)
    key = BeatKeys(app.namespace).schedule("s")
    app.client.delete(key)
    app.client.set(key, "mine")
    for step in range(2):
        set_clock(NOON + HOUR + step * RETRY)
        assert tick_all(beat) == (1 if step == 0 else 0)
        assert app.schedules.stats().waiting == 2

    assert queued(app) == [planned(NOON + HOUR, "t")]
    errors = {one.name: one.error for one in app.schedules.stored()}
    assert "WRONGTYPE" in (errors["s"] or "")
    assert errors["t"] is None


def test_a_beat_does_not_wait_after_a_full_page_of_schedules_that_failed(app: TaskApp) -> None:
    app.schedule("bad", "any", every=HOUR)
    app.schedule("good", "any", every=HOUR)
    beat = Beat(app, BeatConfig(name="b", batch_size=1))
    beat.apply_declared()
    app.client.hset(BeatKeys(app.namespace).schedule("bad"), "definition", "{}")
    set_clock(NOON + HOUR)

    report = beat.tick()
    assert (report.errors, report.claimed, report.wait_ms) == (1, 0, 0)
    assert tick_all(beat) == 1


def test_on_a_jitter_above_the_interval_a_beat_skips_nothing(app: TaskApp) -> None:
    app.schedule("s", "any", every=1, jitter_s=600, misfire_grace_s=10)
    beat = beat_of(app)
    for second in range(0, 1_300, 7):
        set_clock(NOON + timedelta(seconds=second))
        tick_all(beat)

    kept = app.schedules.get("s").stored
    assert kept.skipped == 0
    assert kept.runs > 600


def test_while_a_server_does_not_answer_it_is_asked_once_and_after_the_others(
    app: TaskApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = clustered(app, "a", "b", "c", "good")
    refusing, passed_s = Refusing(app, {"a", "b", "c"}, unanswered()), [0.0]

    def deliver(occurrence: Any) -> bool:
        # Its timeout is above what a tick may last.
        passed_s[0] += 10 if occurrence.schedule in "abc" else 0
        return refusing(occurrence)

    monkeypatch.setattr(store, "deliver_task", deliver)
    monkeypatch.setattr(deliveries, "monotonic", lambda: passed_s[0])
    up = {app.keys(queue).meta for queue in ("of-good", "of-late")}
    monkeypatch.setattr(deliveries, "server_of", lambda _client, key: "up" if key in up else "down")
    beat = beat_of(app)
    set_clock(NOON + HOUR)
    tick_all(beat)
    assert refusing.tried == ["a", "good"]

    late = app.task(name="late", ignore_result=True, queue="of-late")(nothing)
    app.schedules.apply(app.new_schedule("late", late, at=NOON + HOUR))
    assert beat.tick().claimed == 1
    set_clock(NOON + HOUR + RETRY)
    beat.tick()
    assert refusing.tried[2:] == ["late", "a"]

    refusing._refused.clear()
    set_clock(NOON + HOUR + 2 * RETRY)
    tick_all(beat)
    assert refusing.tried[4:] == ["a", "b", "c"]
    assert app.schedules.stats().pending == 0
    assert [app.schedules.get(name).stored.error for name in "abc"] == [None] * 3


def test_a_list_of_queues_that_does_not_answer_keeps_nothing_from_being_claimed(
    app: TaskApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app.schedule("s", "any", every=HOUR)
    beat = beat_of(app)
    run, asked = app.client.execute_command, []

    def run_others(*command: Any, **options: Any) -> Any:
        if command[0] != "SADD":
            return run(*command, **options)
        asked.append(command)
        raise redis.TimeoutError("no reply")

    monkeypatch.setattr(app.client, "execute_command", run_others)
    for hour in (1, 2):
        set_clock(NOON + hour * HOUR)
        assert tick_all(beat) == 1
    assert len(asked) == 1
    assert "queues default are not listed yet" in caplog.text
    assert app.queues() == []

    monkeypatch.undo()
    monkeypatch.setattr(queue_registry, "monotonic", lambda: time.monotonic() + 60)
    beat.tick()
    assert app.queues() == ["default"]


def test_a_schedule_whose_target_was_corrected_goes_on_though_the_old_one_takes_nothing(app: TaskApp) -> None:
    beat = Beat(app, BeatConfig(name="b", max_undelivered=2))
    app.schedules.apply(app.new_schedule("s", to_topic(app), every=HOUR))
    for hour in (1, 2, 3):
        set_clock(NOON + hour * HOUR)
        tick_all(beat)
    app.schedules.apply(app.new_schedule("s", to_stream(app), every=HOUR))
    for hour in (4, 5):
        set_clock(NOON + hour * HOUR)
        tick_all(beat)

    assert sent(app, to_stream(app)) == 2
    assert app.schedules.stats().pending == 2
    assert "2 occurrences are not delivered yet: TopicError" in (app.schedules.get("s").stored.error or "")


def test_what_cannot_be_delivered_of_a_schedule_that_was_deleted_is_dropped(
    app: TaskApp, caplog: pytest.LogCaptureFixture
) -> None:
    bad = app.new_schedule("bad", to_topic(app), every=HOUR, catch_up="all")
    app.schedules.apply(bad)
    app.schedules.apply(app.new_schedule("good", to_stream(app), every=HOUR, catch_up="all"))
    beat = Beat(app, BeatConfig(name="b", batch_size=2))
    set_clock(NOON + 3 * HOUR)
    tick_all(beat)
    assert app.schedules.stats().pending == 3

    app.schedules.delete("bad")
    for step in (1, 2):
        set_clock(NOON + 3 * HOUR + step * RETRY)
        tick_all(beat)
    assert app.schedules.stats().pending == 0
    assert "bad could not be delivered, and is dropped, 2 in all, as the schedule was deleted" in caplog.text
    assert sent(app, to_stream(app)) == 3


def test_of_a_schedule_that_was_created_again_only_what_the_deleted_one_left_is_dropped(app: TaskApp) -> None:
    bad = app.new_schedule("bad", to_topic(app), every=HOUR, catch_up="all")
    app.schedules.apply(bad)
    set_clock(NOON + 2 * HOUR)
    tick_all(beat_of(app))
    app.schedules.delete("bad")
    app.schedules.apply(bad)
    other = beat_of(app, "other")
    for step in range(3):
        set_clock(NOON + 3 * HOUR + step * RETRY)
        tick_all(other)

    assert [one.planned_ms for one in app.schedules.store.pending()] == [
        round((NOON + 3 * HOUR).timestamp() * 1000)
    ]
    assert "TopicError" in (app.schedules.get("bad").stored.error or "")


def test_nothing_of_a_schedule_passes_an_item_that_only_a_later_version_can_read(app: TaskApp) -> None:
    clustered(app, "a")
    beat = beat_of(app, "b")
    outbox, queue = BeatKeys(app.namespace).outbox, app.keys("of-a").streams[5]
    app.client.xadd(outbox, {"schedule": "a", "kind": "task", "priority": "high"})
    set_clock(NOON + HOUR)
    tick_all(beat)
    assert (app.client.xlen(outbox), app.client.xlen(queue)) == (2, 0)

    # As the later version does when it has delivered it.
    client: Any = app.client
    client.xtrim(outbox, maxlen=1, approximate=False)
    set_clock(NOON + HOUR + RETRY)
    tick_all(beat)

    assert (app.client.xlen(outbox), app.client.xlen(queue)) == (0, 1)
