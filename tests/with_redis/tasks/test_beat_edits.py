"""Edits of a schedule while occurrences of it are missed, wait or are claimed: none is lost or added."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from conquiet.tasks import MessageTarget, TaskApp, clock
from conquiet.tasks.keys import BeatKeys
from conquiet.tasks.schedules import CatchUp
from conquiet.tasks.schedules.store import Claim
from tests.with_redis.tasks.beats import (
    HOUR,
    NOON,
    beat_of,
    entries,
    nothing,
    planned,
    queued,
    set_clock,
    tick_all,
)

MINUTE = timedelta(minutes=1)


pytestmark = pytest.mark.usefixtures("at_noon")


def put(app: TaskApp, **options: Any) -> None:
    app.schedules.apply(app.new_schedule("s", "any", **options))


def hours(*numbers: int) -> list[str]:
    return [planned(NOON + number * HOUR) for number in numbers]


def test_after_an_outage_an_edit_keeps_what_is_of_both_times(app: TaskApp) -> None:
    put(app, cron="*/30 * * * *", catch_up="all")
    set_clock(NOON + 5 * HOUR + 10 * MINUTE)
    put(app, cron="0 * * * *", catch_up="all")
    tick_all(beat_of(app))

    assert queued(app) == hours(1, 2, 3, 4, 5)
    assert app.schedules.get("s").next_at == NOON + 6 * HOUR


@pytest.mark.parametrize(("catch_up", "expected"), [("all", (1, 2)), ("last", (2,)), ("none", ())])
def test_after_an_outage_an_edit_adds_nothing_that_was_not_missed(
    app: TaskApp, catch_up: CatchUp, expected: tuple[int, ...]
) -> None:
    put(app, cron="0 * * * *", catch_up=catch_up)
    set_clock(NOON + 2 * HOUR + 10 * MINUTE)
    put(app, cron="* * * * *", catch_up=catch_up)
    # An edit of what is enqueued, and one of the times once more.
    app.schedules.apply(app.new_schedule("s", "any", {"a": 1}, cron="* * * * *", catch_up=catch_up))
    put(app, cron="*/2 * * * *", catch_up=catch_up)
    tick_all(beat_of(app))

    assert queued(app) == hours(*expected)
    assert app.schedules.get("s").next_at == NOON + 2 * HOUR + 12 * MINUTE


@pytest.mark.parametrize("catch_up", ["none", "last"])
@pytest.mark.parametrize("every", [HOUR, MINUTE])
def test_an_occurrence_that_waits_for_its_jitter_is_not_late_by_an_edit_without_it(
    app: TaskApp, catch_up: CatchUp, every: timedelta
) -> None:
    schedule = app.new_schedule("s", "any", every=HOUR, jitter_s=3000, catch_up=catch_up)
    app.schedules.apply(schedule)
    now = NOON + HOUR + 5 * MINUTE
    assert schedule.due_ms(round((NOON + HOUR).timestamp() * 1000)) > now.timestamp() * 1000
    set_clock(now)
    put(app, every=every, catch_up=catch_up)
    tick_all(beat_of(app))

    assert queued(app) == hours(1)
    assert app.schedules.get("s").next_at == (NOON + 2 * HOUR if every == HOUR else now + MINUTE)


@pytest.mark.parametrize("catch_up", ["none", "last"])
def test_what_is_late_stays_late_by_an_edit_while_the_last_one_waits_for_its_jitter(
    app: TaskApp, catch_up: CatchUp
) -> None:
    put(app, every=60, jitter_s=50, catch_up=catch_up)
    set_clock(NOON + 5 * HOUR)
    put(app, every=60, jitter_s=49, catch_up=catch_up)
    tick_all(beat_of(app))

    # Those within the grace of a minute.
    assert 0 < len(queued(app)) <= 3


def test_what_was_missed_is_caught_up_also_if_the_definition_of_before_cannot_be_read(app: TaskApp) -> None:
    put(app, cron="0 * * * *", catch_up="all")
    app.client.hset(BeatKeys(app.namespace).schedule("s"), "definition", b"unreadable")
    set_clock(NOON + 3 * HOUR)
    put(app, cron="0 * * * *", catch_up="all")
    tick_all(beat_of(app))

    assert queued(app) == hours(1, 2, 3)


@pytest.mark.parametrize("planned_ms", ["abc", "1800000000000000", "inf", "-0", ""])
def test_a_planned_time_that_somebody_has_changed_is_made_anew_by_an_edit(
    app: TaskApp, planned_ms: str
) -> None:
    put(app, every=HOUR)
    app.client.hset(BeatKeys(app.namespace).schedule("s"), "planned", planned_ms)
    app.schedules.apply(app.new_schedule("s", "any", {"a": 1}, every=HOUR))

    assert app.schedules.get("s").next_at == NOON + HOUR


def test_an_edit_of_the_target_leaves_when_an_occurrence_is_due(app: TaskApp) -> None:
    put(app, every=10, jitter_s=600, misfire_grace_s=1, catch_up="none")
    beat, skipped = beat_of(app), 0
    for second in range(900):
        set_clock(NOON + timedelta(seconds=second))
        if second % 100 == 50:
            arguments = {"second": second}
            edit = app.new_schedule(
                "s", "any", arguments, every=10, jitter_s=600, misfire_grace_s=1, catch_up="none"
            )
            app.schedules.apply(edit)
        while (report := beat.tick()).wait_ms == 0:
            skipped += report.skipped

    assert skipped == 0
    assert queued(app)


def test_an_edit_after_a_year_of_missed_seconds_ends(app: TaskApp) -> None:
    put(app, every=1, catch_up="all")
    set_clock(NOON + timedelta(days=365))
    put(app, every=2, catch_up="all")
    carried = app.schedules.get("s").stored.carried_ms

    assert 100 < len(carried) <= 1_000
    assert carried[-1] == clock.now_ms()


def test_a_time_that_is_long_over_is_not_enqueued_again_by_code_that_still_has_it(app: TaskApp) -> None:
    app.schedule("s", app.task(name="t", ignore_result=True)(nothing), at=NOON + HOUR, catch_up="all")
    beat = beat_of(app)
    set_clock(NOON + HOUR)
    tick_all(beat)
    app.schedules.delete("s")

    set_clock(NOON + timedelta(days=200))
    tick_all(beat_of(app))
    assert queued(app) == hours(1)
    assert app.schedules.get("s").next_at is None


@pytest.mark.parametrize(
    ("at", "is_enqueued"), [(NOON - timedelta(seconds=50), True), (NOON - timedelta(seconds=70), False)]
)
@pytest.mark.parametrize("is_new", [True, False])
def test_a_time_that_is_over_is_enqueued_within_its_grace(
    app: TaskApp, at: datetime, is_enqueued: bool, is_new: bool
) -> None:
    if not is_new:
        put(app, at=NOON + HOUR)
    put(app, at=at)
    tick_all(beat_of(app))

    assert queued(app) == ([planned(at)] if is_enqueued else [])


def test_a_message_is_sent_again_by_a_schedule_that_was_deleted_and_created_with_the_same_time(
    app: TaskApp,
) -> None:
    stream, beat = f"{app.namespace}-stream", beat_of(app)
    for second, payload in enumerate(({"v": "old"}, {"v": "new"})):
        set_clock(NOON + timedelta(seconds=second))
        target = MessageTarget(kind="stream", name=stream, payload=payload)
        app.schedules.apply(app.new_schedule("s", target, at=NOON))
        tick_all(beat)
        app.schedules.delete("s")

    assert entries(app, stream) == [{"v": "old"}, {"v": "new"}]


def test_a_claim_of_a_schedule_that_was_deleted_and_created_again_is_refused(
    app: TaskApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.schedules.apply(app.new_schedule("s", "any", {"v": "old"}, at=NOON))
    store = app.schedules.store
    claim = store.claim

    def claim_late(claims: Sequence[Claim]) -> Any:
        monkeypatch.setattr(store, "claim", claim)
        app.schedules.delete("s")
        app.schedules.apply(app.new_schedule("s", "any", {"v": "new"}, at=NOON))
        return claim(claims)

    monkeypatch.setattr(store, "claim", claim_late)
    set_clock(NOON + timedelta(seconds=1))
    beat = beat_of(app)
    beat.tick()
    tick_all(beat)

    assert [entry["args"] for entry in entries(app, app.keys("default").streams[5])] == [{"v": "new"}]


def test_a_schedule_that_is_written_when_it_is_over_is_told(
    app: TaskApp, caplog: pytest.LogCaptureFixture
) -> None:
    put(app, at=NOON + HOUR)
    put(app, at=NOON - MINUTE / 2)
    put(app, at=NOON - HOUR, enabled=False)
    assert not caplog.messages

    put(app, at=NOON - HOUR)

    assert caplog.messages == ["schedule s is over: it has no time from now on"]
    assert app.schedules.get("s").next_at is None
