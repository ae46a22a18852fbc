"""Beat: each occurrence of a schedule is enqueued once, whoever leads, whatever is edited meanwhile."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from conquiet import QueueConfig, QueueError, RedisStreamsQueue
from conquiet.mq import Topics
from conquiet.tasks import MessageTarget, ScheduleChangedError, TaskApp, UnknownScheduleError, clock
from conquiet.tasks.beat import Beat, BeatConfig, claims
from conquiet.tasks.keys import BeatKeys
from tests.eventually import eventually
from tests.with_redis.tasks.beats import (
    HOUR,
    NOON,
    RETRY,
    beat_of,
    entries,
    nothing,
    planned,
    queued,
    set_clock,
    tick_all,
)

pytestmark = pytest.mark.usefixtures("at_noon")


def test_what_is_due_is_enqueued_once_and_what_is_not_due_waits(app: TaskApp) -> None:
    app.schedule("s", "any", cron="0 * * * *")
    beat = beat_of(app)
    assert tick_all(beat) == 0

    set_clock(NOON + HOUR)
    assert tick_all(beat) == 1
    assert tick_all(beat) == 0

    assert queued(app) == [planned(NOON + HOUR)]
    status = app.handle(planned(NOON + HOUR)).status()
    assert status is not None
    assert status.state == "queued"
    assert app.schedules.get("s").next_at == NOON + 2 * HOUR


def test_a_task_gets_its_arguments_options_and_the_planned_time(app: TaskApp) -> None:
    @app.task(name="bill")
    def bill(order: int, at: datetime) -> None: ...

    app.schedule("s", bill.with_options(queue="bills", priority=9), {"order": 7, "at": NOON}, every=HOUR)
    beat = beat_of(app)
    set_clock(NOON + HOUR)
    tick_all(beat)

    [envelope] = entries(app, app.keys("bills").streams[9])
    assert envelope["args"] == {"order": 7, "at": "2026-01-15T12:00:00Z"}
    assert envelope["meta"]["schedule"] == {"name": "s", "plannedAt": "2026-01-15T13:00:00.000+00:00"}
    assert "bills" in app.queues()


def test_one_beat_leads_and_another_takes_over_when_its_lease_ends(app: TaskApp) -> None:
    app.schedule("s", "any", every=HOUR, catch_up="all")
    first, second = beat_of(app, "first"), beat_of(app, "second")
    assert first.tick().is_leading
    assert not second.tick().is_leading

    set_clock(NOON + HOUR)
    assert second.tick().is_leading
    assert not first.tick().is_leading

    tick_all(second)
    assert queued(app) == [planned(NOON + HOUR)]


def test_what_an_earlier_leader_claims_is_refused(app: TaskApp, monkeypatch: pytest.MonkeyPatch) -> None:
    app.schedule("s", "any", every=HOUR)
    first, second = beat_of(app, "first"), beat_of(app, "second")
    first.tick()
    set_clock(NOON + HOUR)
    read = app.schedules.store.read_many

    def read_slowly(names):
        monkeypatch.setattr(app.schedules.store, "read_many", read)
        found = read(names)
        # Stands still for longer than its lease, and another one leads.
        set_clock(NOON + HOUR + timedelta(seconds=30))
        assert tick_all(second) == 1
        return found

    monkeypatch.setattr(app.schedules.store, "read_many", read_slowly)
    assert first.tick().claimed == 0

    assert queued(app) == [planned(NOON + HOUR)]


def test_a_beat_that_stops_leaves_its_lease(app: TaskApp) -> None:
    clock.set_clock(None)
    with Beat(app, BeatConfig(name="first")) as first:
        eventually(lambda: first.is_leading)

    assert Beat(app, BeatConfig(name="second")).tick().is_leading


def test_a_running_beat_enqueues_what_its_code_declares(app: TaskApp) -> None:
    clock.set_clock(None)
    app.schedule("s", "any", every=1)

    with Beat(app):
        eventually(lambda: len(queued(app)) >= 2)

    ids = [int(one.rpartition(":")[2]) for one in queued(app)]
    assert ids == list(range(ids[0], ids[-1] + 1, 1000))
    line = app.schedules.history("s")[0]
    assert line.id == app.schedules.get("s").stored.last_id
    assert line.drift_ms == line.at_ms - line.planned_ms


def test_a_running_beat_writes_the_schedules_of_its_code_again_when_they_are_lost(
    app: TaskApp, caplog: pytest.LogCaptureFixture
) -> None:
    clock.set_clock(None)
    app.schedule("nightly", "any", every=timedelta(hours=1))
    with Beat(app, BeatConfig(name="leads", poll_s=0.05)), Beat(app, BeatConfig(name="waits", poll_s=0.05)):
        for _ in range(2):
            eventually(lambda: [stored.name for stored in app.schedules.stored()] == ["nightly"])
            eventually(lambda: app.client.exists(BeatKeys(app.namespace).meta))
            # As a server that restarts without its data.
            app.client.delete(*app.client.scan_iter(f"{app.namespace}:*"))

        eventually(lambda: [stored.name for stored in app.schedules.stored()] == ["nightly"])
    assert "the schedules are lost" in caplog.text


def test_a_running_beat_lists_its_queues_again_when_they_are_lost(app: TaskApp) -> None:
    clock.set_clock(None)
    app.schedule("often", "any", every=1)
    with Beat(app, BeatConfig(poll_s=0.05)):
        for _ in range(2):
            eventually(lambda: app.queues() == ["default"])
            # As a server that restarts without its data.
            app.client.delete(*app.client.scan_iter(f"{app.namespace}:*"))

        eventually(lambda: app.queues() == ["default"])


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        ("all", [NOON + number * HOUR for number in range(1, 6)]),
        ("last", [NOON + 5 * HOUR]),
        ("none", []),
    ],
)
def test_after_an_outage_the_policy_of_the_schedule_decides(app: TaskApp, catch_up, expected) -> None:
    app.schedule("s", "any", every=HOUR, catch_up=catch_up)
    beat = beat_of(app)
    set_clock(NOON + 5.5 * HOUR)
    tick_all(beat)

    assert queued(app) == [planned(one) for one in expected]
    state = app.schedules.get("s")
    assert state.next_at == NOON + 6 * HOUR
    assert state.stored.runs + state.stored.skipped == 5


def test_an_occurrence_within_its_grace_is_enqueued_though_late_ones_are_not(app: TaskApp) -> None:
    app.schedule("s", "any", every=HOUR, catch_up="none", misfire_grace_s=1800)
    beat = beat_of(app)
    set_clock(NOON + 5.4 * HOUR)
    tick_all(beat)

    assert queued(app) == [planned(NOON + 5 * HOUR)]


def test_a_year_of_missed_seconds_is_left_in_one_step(app: TaskApp) -> None:
    app.schedule("s", "any", every=1, catch_up="last", misfire_grace_s=0)
    beat = beat_of(app)
    set_clock(NOON + timedelta(days=365, milliseconds=1))
    tick_all(beat)

    assert queued(app) == [planned(NOON + timedelta(days=365))]


def test_an_expired_occurrence_is_not_enqueued_and_others_expire_by_their_planned_time(
    app: TaskApp,
) -> None:
    app.schedule("s", "any", every=HOUR, catch_up="all", expires_s=5400)
    beat = beat_of(app)
    set_clock(NOON + 3 * HOUR)
    tick_all(beat)

    assert queued(app) == [planned(NOON + 2 * HOUR), planned(NOON + 3 * HOUR)]
    expires = [entry["meta"]["expiresAt"] for entry in entries(app, app.keys("default").streams[5])]
    assert expires == [(NOON + each * HOUR).isoformat(timespec="milliseconds") for each in (3.5, 4.5)]


def test_when_the_clock_is_set_back_nothing_is_enqueued_twice_and_the_lease_of_the_dead_ends(
    app: TaskApp,
) -> None:
    app.schedule("s", "any", every=timedelta(minutes=30))
    beat = beat_of(app)
    set_clock(NOON + HOUR)
    tick_all(beat)
    enqueued = queued(app)

    set_clock(NOON)
    other = beat_of(app, "other")
    assert not other.tick().is_leading
    set_clock(NOON + timedelta(seconds=11))
    assert other.tick().is_leading
    set_clock(NOON + HOUR)
    tick_all(other)
    assert queued(app) == enqueued

    set_clock(NOON + 1.5 * HOUR)
    tick_all(other)
    assert queued(app) == [*enqueued, planned(NOON + 1.5 * HOUR)]


def test_when_the_clock_jumps_ahead_it_is_as_after_an_outage(app: TaskApp) -> None:
    app.schedule("s", "any", every=timedelta(minutes=20), catch_up="all")
    beat = beat_of(app)
    tick_all(beat)
    set_clock(NOON + HOUR)
    tick_all(beat)

    assert queued(app) == [planned(NOON + timedelta(minutes=each)) for each in (20, 40, 60)]


def test_an_edit_of_another_version_is_refused(app: TaskApp) -> None:
    version, _ = app.schedules.apply(app.new_schedule("s", "any", every=HOUR), version=0)

    with pytest.raises(ScheduleChangedError, match="is at version 1"):
        app.schedules.apply(app.new_schedule("s", "other", every=HOUR), version=0)
    assert app.schedules.apply(app.new_schedule("s", "other", every=HOUR), version=version) == (2, True)
    assert app.schedules.apply(app.new_schedule("s", "other", every=HOUR)) == (2, False)
    with pytest.raises(ScheduleChangedError):
        app.schedules.delete("s", version=1)
    app.schedules.delete("s", version=2)
    with pytest.raises(UnknownScheduleError):
        app.schedules.get("s")


def test_a_claim_between_reading_and_writing_an_edit_is_not_undone(
    app: TaskApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.schedule("s", "any", every=HOUR)
    beat = beat_of(app)
    set_clock(NOON + HOUR)
    store = app.schedules.store
    read = store.read

    def read_and_be_late(name):
        found = read(name)
        monkeypatch.setattr(store, "read", read)
        assert tick_all(beat) == 1
        return found

    monkeypatch.setattr(store, "read", read_and_be_late)
    app.schedules.apply(app.new_schedule("s", "other", every=HOUR))

    assert app.schedules.get("s").next_at == NOON + 2 * HOUR
    assert tick_all(beat) == 0


def test_an_edit_of_the_arguments_keeps_what_is_due_and_one_of_the_time_does_not_repeat(app: TaskApp) -> None:
    app.schedule("s", "any", every=HOUR)
    beat = beat_of(app)
    set_clock(NOON + HOUR)
    app.schedules.apply(app.new_schedule("s", "any", {"a": 1}, every=HOUR))
    assert tick_all(beat) == 1

    app.schedules.apply(app.new_schedule("s", "any", {"a": 1}, every=HOUR / 2))
    assert tick_all(beat) == 0
    assert app.schedules.get("s").next_at == NOON + 1.5 * HOUR


def test_a_disabled_schedule_waits_and_stays_disabled_when_the_code_is_applied_again(app: TaskApp) -> None:
    app.schedule("s", "any", every=HOUR, catch_up="all")
    beat = beat_of(app)
    app.schedules.disable("s")
    set_clock(NOON + 3 * HOUR)
    beat.apply_declared()
    assert tick_all(beat) == 0

    app.schedules.enable("s")
    set_clock(NOON + 4 * HOUR)
    tick_all(beat)
    assert queued(app) == [planned(NOON + 4 * HOUR)]


def test_a_schedule_ends_and_can_be_for_once(app: TaskApp) -> None:
    app.schedule("once", "any", at=NOON + HOUR)
    app.schedule("late", "any", at=NOON - HOUR, misfire_grace_s=3_600)
    app.schedule("limited", "any", every=HOUR, start=NOON + 2 * HOUR, end=NOON + 3 * HOUR, catch_up="all")
    beat = beat_of(app)
    tick_all(beat)
    set_clock(NOON + 9 * HOUR)
    tick_all(beat)

    assert queued(app) == [
        planned(NOON - HOUR, "late"),
        planned(NOON + HOUR, "once"),
        planned(NOON + 2 * HOUR, "limited"),
        planned(NOON + 3 * HOUR, "limited"),
    ]
    assert {name: app.schedules.get(name).next_at for name in ("once", "late", "limited")} == {
        "once": None,
        "late": None,
        "limited": None,
    }


def test_jitter_is_the_same_for_every_beat_and_within_its_bound(app: TaskApp) -> None:
    schedule = app.schedule("s", "any", every=HOUR, jitter_s=600, catch_up="all")
    beat = beat_of(app)
    due = [schedule.due_ms(round((NOON + number * HOUR).timestamp() * 1000)) for number in range(1, 50)]
    jitters = {one % 3_600_000 for one in due}
    assert len(jitters) > 40
    assert max(jitters) <= 600_000

    clock.set_clock(due[0] - 1)
    assert tick_all(beat) == 0
    clock.set_clock(due[0])
    assert tick_all(beat) == 1
    assert queued(app) == [planned(NOON + HOUR)]


def test_messages_go_to_streams_and_topics_once(app: TaskApp) -> None:
    stream, topic = f"{app.namespace}-stream", f"{app.namespace}-topic"
    Topics(app.client).create(topic, partitions=2)
    app.schedule("a", MessageTarget(kind="stream", name=stream, payload={"n": 1}), every=HOUR)
    app.schedule("b", MessageTarget(kind="topic", name=topic, payload={"n": 2}, key="k"), every=HOUR)
    beat = beat_of(app)
    set_clock(NOON + HOUR)
    tick_all(beat)

    queue = RedisStreamsQueue(app.client, QueueConfig(stream, "g", "c"))
    assert [msg.payload for msg in queue.read(10, 10)] == [{"n": 1}]
    keys = Topics(app.client).open(topic).keys
    sent = [entry["payload"] for number in (0, 1) for entry in entries(app, keys.stream(number))]
    assert sent == [{"n": 2}]
    assert app.schedules.stats().pending == 0


def test_what_cannot_be_delivered_waits_and_does_not_hold_up_others(app: TaskApp) -> None:
    topic, stream = f"{app.namespace}-topic", f"{app.namespace}-stream"
    app.schedule("bad", MessageTarget(kind="topic", name=topic, payload={}), every=HOUR)
    app.schedule("good", MessageTarget(kind="stream", name=stream, payload={}), every=HOUR)
    beat = Beat(app, BeatConfig(name="b", batch_size=1))
    beat.apply_declared()
    set_clock(NOON + HOUR)
    for _ in range(6):
        beat.tick()

    assert app.client.xlen(stream) == 1
    assert "TopicError" in (app.schedules.get("bad").stored.error or "")
    assert app.schedules.stats().pending == 1
    Topics(app.client).create(topic)
    set_clock(NOON + HOUR + RETRY)
    for _ in range(3):
        beat.tick()
    assert app.schedules.stats().pending == 0
    assert app.schedules.get("bad").stored.error is None


def test_a_schedule_that_cannot_be_read_is_tried_again_and_misses_nothing(app: TaskApp) -> None:
    app.schedule("s", "any", every=HOUR, catch_up="all")
    app.schedule("t", "any", every=HOUR)
    beat = beat_of(app)
    key = BeatKeys(app.namespace).schedule("s")
    definition = app.client.hget(key, "definition")
    app.client.hset(key, "definition", "{}")
    set_clock(NOON + HOUR)
    assert tick_all(beat) == 1
    _, stored = app.schedules.store.read("s")
    assert stored is not None
    assert "ValueError" in (stored.error or "")

    app.client.hset(key, "definition", definition)
    set_clock(NOON + 2 * HOUR)
    tick_all(beat)
    ids = [one for one in queued(app) if ":s:" in one]
    assert ids == [planned(NOON + HOUR), planned(NOON + 2 * HOUR)]
    assert app.schedules.get("s").stored.error is None


def test_a_schedule_whose_key_was_deleted_by_hand_is_forgotten(app: TaskApp) -> None:
    app.schedule("s", "any", every=HOUR)
    beat = beat_of(app)
    app.client.delete(BeatKeys(app.namespace).schedule("s"))
    set_clock(NOON + HOUR)
    tick_all(beat)

    assert app.schedules.stats().waiting == 0


def test_on_a_cluster_no_occurrence_is_taken_for_an_earlier_one_after_a_failover_lost_the_last_number(
    app: TaskApp,
) -> None:
    app.schedule("s", app.task(name="t", ignore_result=True)(nothing), every=HOUR)
    app.schedules.store._is_cluster = True  # type: ignore[attr-defined]
    beat = beat_of(app)
    for hour in (1, 2):
        set_clock(NOON + hour * HOUR)
        assert tick_all(beat) == 1

    app.client.delete(BeatKeys(app.namespace).meta)
    set_clock(NOON + 3 * HOUR)
    tick_all(beat)

    assert queued(app) == [planned(NOON + hour * HOUR) for hour in (1, 2, 3)]


def test_on_a_cluster_an_occurrence_that_cannot_be_delivered_is_not_overtaken_by_a_later_one(
    app: TaskApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("s", "t"):
        task = app.task(name=name, ignore_result=True)(nothing)
        app.schedule(name, task, every=HOUR, catch_up="all")
    store: Any = app.schedules.store
    store._is_cluster = True
    beat = Beat(app, BeatConfig(name="b", batch_size=1))
    beat.apply_declared()
    refused: list[str] = []
    deliver = store.deliver_task

    def refuse_at_first(occurrence):
        if occurrence.schedule == "s" and len(refused) < 3:
            refused.append(occurrence.id)
            raise QueueError("enqueue", stream="s", group=None, reason="full")
        return deliver(occurrence)

    monkeypatch.setattr(store, "deliver_task", refuse_at_first)
    for step in range(5):
        set_clock(NOON + 3 * HOUR + step * RETRY)
        for _ in range(10):
            beat.tick()

    assert refused == [planned(NOON + HOUR)] * 3
    ids = queued(app)
    for name in ("s", "t"):
        wanted = [planned(NOON + hour * HOUR, name) for hour in (1, 2, 3)]
        assert [one for one in ids if f":{name}:" in one] == wanted
    assert app.schedules.stats().pending == 0


def test_overdue_schedules_and_the_leader_are_counted(app: TaskApp) -> None:
    app.schedule("s", "any", every=HOUR)
    app.schedule("t", "any", every=HOUR, enabled=False)
    beat = beat_of(app)
    assert app.schedules.stats().leader is None
    beat.tick()
    set_clock(NOON + HOUR + timedelta(seconds=5))
    stats = app.schedules.stats()
    assert (stats.schedules, stats.waiting, stats.due, stats.overdue) == (2, 1, 1, 0)

    set_clock(NOON + 2 * HOUR)
    beat.tick()
    stats = app.schedules.stats()
    assert (stats.leader, stats.due, stats.epoch) == ("b", 0, 1)


def test_an_edit_of_the_time_keeps_an_occurrence_that_waits_for_its_jitter(app: TaskApp) -> None:
    app.schedule("s", "any", every=HOUR, jitter_s=600)
    beat = beat_of(app)
    set_clock(NOON + HOUR)
    app.schedules.apply(app.new_schedule("s", "any", every=HOUR / 2, jitter_s=300))
    assert app.schedules.get("s").next_at == NOON + HOUR

    set_clock(NOON + 1.1 * HOUR)
    tick_all(beat)
    assert queued(app) == [planned(NOON + HOUR)]
    assert app.schedules.get("s").next_at == NOON + 1.5 * HOUR


def test_an_edit_of_the_time_drops_an_occurrence_that_is_none_any_more(app: TaskApp) -> None:
    app.schedules.apply(app.new_schedule("s", "any", every=HOUR, jitter_s=600))
    set_clock(NOON + HOUR)
    app.schedules.apply(app.new_schedule("s", "any", cron="15 * * * *"))

    assert app.schedules.get("s").next_at == NOON + 1.25 * HOUR


def test_claims_are_made_before_planning_outlasts_the_lease_and_the_next_ticks_go_on(
    app: TaskApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        app.schedule(name, "any", every=HOUR, catch_up="none")
    beat = beat_of(app)
    set_clock(NOON + 2.5 * HOUR)
    passed = iter(range(1_000))
    # Each call a second later, of the 3.3 that a tick may plan: a and most of b.
    monkeypatch.setattr(claims, "monotonic", lambda: float(next(passed)))
    report = beat.tick()

    assert report.wait_ms == 0
    assert 0 < report.skipped < 6
    assert report.skipped + sum(beat.tick().skipped for _ in range(6)) == 6
    assert {app.schedules.get(name).next_at for name in "abc"} == {NOON + 3 * HOUR}


def test_a_schedule_whose_planning_takes_too_long_goes_on_tick_by_tick_behind_the_others(
    app: TaskApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.schedule("a-slow", "any", every=timedelta(minutes=20))
    beat = beat_of(app)
    set_clock(NOON + 3.1 * HOUR)
    app.schedules.apply(app.new_schedule("quick", "any", at=NOON + 3 * HOUR, misfire_grace_s=3_600))
    passed = iter(range(0, 10_000, 4))
    monkeypatch.setattr(claims, "monotonic", lambda: float(next(passed)))
    ticks = 0
    while beat.tick().wait_ms == 0:
        ticks += 1

    assert ticks == 10
    assert queued(app) == [planned(NOON + 3 * HOUR, "quick"), planned(NOON + 3 * HOUR, "a-slow")]
    assert app.schedules.get("a-slow").stored.skipped == 8


def test_a_schedule_of_the_code_that_is_refused_does_not_have_the_others_written_again(
    app: TaskApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.set_clock(None)
    app.schedule("big", "any", every=HOUR)
    app.schedule("ok", "any", every=HOUR)
    apply, applied = app.schedules.apply, []

    def refuse_the_big_one(schedule: Any) -> Any:
        applied.append(schedule.name)
        if schedule.name == "big":
            raise ValueError("above max_bytes")
        return apply(schedule)

    monkeypatch.setattr(app.schedules, "apply", refuse_the_big_one)
    with Beat(app, BeatConfig(poll_s=0.05)):
        eventually(lambda: applied.count("big") >= 3)

    assert applied.count("ok") == 1


def test_schedules_of_the_code_that_are_lost_before_the_first_tick_are_written_again(
    app: TaskApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.set_clock(None)
    app.schedule("s", "any", every=HOUR)
    store: Any = app.schedules.store
    tick = store.tick

    def lose_and_tick(*given: Any, **options: Any) -> Any:
        monkeypatch.setattr(store, "tick", tick)
        app.schedules.delete("s")
        return tick(*given, **options)

    monkeypatch.setattr(store, "tick", lose_and_tick)
    with Beat(app, BeatConfig(poll_s=0.05)):
        eventually(lambda: store.tick == tick)
        eventually(lambda: [stored.name for stored in app.schedules.stored()] == ["s"])
