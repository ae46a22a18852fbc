"""When schedules are due: cron, intervals, calendars, changes of clocks in three zones, what files say."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from dateutil.rrule import rrulestr

from conquiet.tasks import MessageTarget, Schedule, TaskTarget
from conquiet.tasks.schedules import timing as timing_module
from conquiet.tasks.schedules.occurrences import plan
from conquiet.tasks.schedules.schedules import next_occurrences
from conquiet.tasks.schedules.timing import Calendar, Cron, Every, Timing, datetime_of, milliseconds_of

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"


def times(timing: Timing, begin: datetime, end: datetime) -> list[str]:
    """Local time with its offset, of every occurrence after the begin up to the end."""
    tz = begin.tzinfo
    found, moment = [], milliseconds_of(begin)
    while (following := timing.next_after(moment)) is not None and following <= milliseconds_of(end):
        assert following > moment
        moment = following
        found.append(datetime_of(moment).astimezone(tz).strftime("%d %H:%M %z"))
    return found


def night(tz: str, year: int, month: int, day: int, *, hours: int = 8) -> tuple[datetime, datetime]:
    begin = datetime(year, month, day, tzinfo=ZoneInfo(tz)) - timedelta(minutes=1)
    return begin, (begin.astimezone(UTC) + timedelta(hours=hours)).astimezone(begin.tzinfo)


#: Zone, the night in which clocks go forward, and the moment at which the gap ends.
GAPS = [
    (BERLIN, (2026, 3, 29), "29 03:00 +0200"),
    (NEW_YORK, (2026, 3, 8), "08 03:00 -0400"),
    # Half an hour.
    (LORD_HOWE, (2026, 10, 4), "04 02:30 +1100"),
]
#: Zone, the night in which they go back, a time that is there twice, and its first one.
REPEATS = [
    (BERLIN, (2026, 10, 25), "30 2", "25 02:30 +0200"),
    (NEW_YORK, (2026, 11, 1), "30 1", "01 01:30 -0400"),
    (LORD_HOWE, (2026, 4, 5), "45 1", "05 01:45 +1100"),
]


@pytest.mark.parametrize(("tz", "day", "end_of_gap"), GAPS)
def test_a_time_that_the_clocks_skip_is_due_at_the_end_of_the_gap(tz, day, end_of_gap) -> None:
    span = night(tz, *day)

    assert times(Cron("15 2 * * *", tz), *span) == [end_of_gap]
    assert times(Calendar("FREQ=DAILY;BYHOUR=2;BYMINUTE=15", tz), *span) == [end_of_gap]


@pytest.mark.parametrize(("tz", "day", "minute_and_hour", "first"), REPEATS)
def test_a_time_that_is_there_twice_is_due_once_the_first_time(tz, day, minute_and_hour, first) -> None:
    span = night(tz, *day)
    minute, hour = minute_and_hour.split()

    assert times(Cron(f"{minute_and_hour} * * *", tz), *span) == [first]
    assert times(Calendar(f"FREQ=DAILY;BYHOUR={hour};BYMINUTE={minute}", tz), *span) == [first]


@pytest.mark.parametrize(("tz", "day"), [(tz, day) for tz, day, _ in GAPS] + [row[:2] for row in REPEATS])
def test_each_quarter_of_an_hour_is_due_whatever_the_clocks_show(tz, day) -> None:
    span = night(tz, *day)

    for timing in (Cron("*/15 * * * *", tz), Every(900_000)):
        assert len(times(timing, *span)) == 8 * 4


@pytest.mark.parametrize(("tz", "day", "end_of_gap"), GAPS)
def test_a_cron_with_seconds_that_the_clocks_skip_is_due_once_at_the_end_of_the_gap(
    tz, day, end_of_gap
) -> None:
    assert times(Cron("*/20 15 2 * * *", tz), *night(tz, *day)) == [end_of_gap]


@pytest.mark.parametrize(("tz", "day", "minute_and_hour", "first"), REPEATS)
def test_a_cron_with_seconds_whose_time_is_there_twice_is_due_the_first_time(
    tz, day, minute_and_hour, first
) -> None:
    assert times(Cron(f"*/20 {minute_and_hour} * * *", tz), *night(tz, *day)) == [first] * 3


@pytest.mark.parametrize(("tz", "day"), [(tz, day) for tz, day, _ in GAPS] + [row[:2] for row in REPEATS])
@pytest.mark.parametrize(
    "expression", ["*/10 2 * * *", "*/10 1,3 * * *", "5 */2 * * *", "0,30 */10 2-3 * * *"]
)
def test_a_cron_by_real_time_is_due_whenever_the_clock_shows_it(tz, day, expression) -> None:
    begin, end = night(tz, *day)
    wanted = []
    moment = begin.astimezone(UTC)
    while (moment := moment + timedelta(seconds=30)) <= end.astimezone(UTC):
        local = moment.astimezone(begin.tzinfo)
        shown = local.replace(tzinfo=None)
        if next(CronSim(expression, shown - timedelta(seconds=1))) == shown:
            wanted.append(local.strftime("%d %H:%M %z"))

    assert times(Cron(expression, tz), begin, end) == wanted


def test_an_hour_in_the_middle_of_the_repeated_hour_begins_where_it_is() -> None:
    second_pass = datetime(2026, 10, 25, 2, 10, fold=1, tzinfo=ZoneInfo(BERLIN))

    assert times(Cron("30 2 * * *", BERLIN), second_pass, second_pass + timedelta(hours=25)) == [
        "26 02:30 +0100"
    ]


def test_a_day_has_one_occurrence_of_a_daily_schedule_all_year_in_each_zone() -> None:
    for tz in (BERLIN, NEW_YORK, LORD_HOWE):
        begin, end = (
            datetime(year, 1, 1, tzinfo=ZoneInfo(tz)) - timedelta(minutes=1) for year in (2026, 2027)
        )
        for timing in (Cron("30 2 * * *", tz), Calendar("FREQ=DAILY;BYHOUR=2;BYMINUTE=30", tz)):
            assert len(times(timing, begin, end)) == 365


def test_the_last_working_day_of_the_month() -> None:
    begin, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 6, 1, tzinfo=UTC)
    expected = [f"{day} 18:00 +0000" for day in (30, 27, 31, 30, 29)]

    assert times(Cron("0 18 LW * *"), begin, end) == expected
    assert times(Calendar("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1;BYHOUR=18"), begin, end) == expected


def test_every_second_week_counts_from_its_start() -> None:
    start = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)
    timing = Calendar("FREQ=WEEKLY;INTERVAL=2", "UTC", milliseconds_of(start))

    assert times(timing, start, start + timedelta(days=30)) == ["19 09:30 +0000", "02 09:30 +0000"]


@pytest.mark.parametrize(
    ("rule", "start", "expected"),
    [
        ("FREQ=WEEKLY", (2026, 1, 7, 9, 30), ["14 09:30 +0000", "21 09:30 +0000", "28 09:30 +0000"]),
        ("FREQ=MONTHLY", (2026, 1, 7, 9, 30), ["07 09:30 +0000"]),
        (
            "FREQ=WEEKLY;BYDAY=MO",
            (2026, 1, 7, 9, 30),
            ["12 00:00 +0000", "19 00:00 +0000", "26 00:00 +0000", "02 00:00 +0000"],
        ),
    ],
)
def test_a_rule_without_a_day_has_day_and_time_of_its_start(rule, start, expected) -> None:
    begin = datetime(*start).replace(tzinfo=UTC)
    timing = Calendar(rule, "UTC", milliseconds_of(begin))

    assert times(timing, begin, datetime(2026, 2, 7, 12, tzinfo=UTC))[: len(expected)] == expected


@pytest.mark.parametrize(
    ("start", "tz", "first"),
    [
        (datetime(2026, 1, 7, 9, 30, 0, 500_000), "UTC", datetime(2026, 1, 7, 9, 30, 1)),
        (datetime(2026, 10, 25, 2, 30, fold=1), BERLIN, datetime(2026, 10, 25, 2, 30, fold=1)),
    ],
)
def test_a_count_begins_with_its_start(start, tz, first) -> None:
    zone = ZoneInfo(tz)
    schedule = Schedule.of(
        "s", TaskTarget("t"), calendar="FREQ=WEEKLY;COUNT=1", tz=tz, start=start.replace(tzinfo=zone)
    )

    found = schedule.next_after(milliseconds_of(start.replace(tzinfo=zone)) - 3_600_000)
    assert found == milliseconds_of(first.replace(tzinfo=zone))
    assert schedule.next_after(found) is None


def test_a_calendar_may_have_easter_sunday() -> None:
    found = Calendar("FREQ=YEARLY;BYEASTER=0").next_after(milliseconds_of(datetime(2026, 1, 1, tzinfo=UTC)))

    assert found == milliseconds_of(datetime(2026, 4, 5, tzinfo=UTC))


def test_a_month_and_a_year_without_a_day_begin_with_their_first() -> None:
    begin, end = datetime(2025, 12, 15, tzinfo=UTC), datetime(2027, 1, 15, tzinfo=UTC)

    assert len(times(Calendar("FREQ=MONTHLY"), begin, end)) == 13
    for rule, month in (("FREQ=YEARLY", 1), ("FREQ=YEARLY;BYMONTH=3", 3)):
        found = Calendar(rule).next_after(milliseconds_of(begin))
        assert found == milliseconds_of(datetime(2026, month, 1, tzinfo=UTC))


def test_an_interval_counts_from_its_start_or_from_1970() -> None:
    target, start = TaskTarget("any"), datetime(2026, 1, 1, 0, 7, tzinfo=UTC)
    free = Schedule(name="s", target=target, every=timedelta(minutes=10))
    anchored = Schedule(name="s", target=target, every=timedelta(minutes=10), start=start)
    now = milliseconds_of(datetime(2026, 1, 1, tzinfo=UTC))

    assert [datetime_of(one).minute for one, _ in next_occurrences(free, 3, now)] == [10, 20, 30]
    assert [datetime_of(one).minute for one, _ in next_occurrences(anchored, 3, now)] == [7, 17, 27]


@pytest.mark.parametrize(
    "document",
    [
        {
            "task": "shop.bill",
            "cron": "0 2 * * *",
            "tz": BERLIN,
            "args": {"a": [1]},
            "options": {"priority": 9},
        },
        {"task": "t", "every_s": 2.5, "start": "2026-01-01T00:00:00+00:00", "jitter_s": 3, "enabled": False},
        {"stream": "s", "payload": {"a": 1}, "at": "2026-01-01T12:00:00+01:00", "catch_up": "none"},
        {"topic": "t", "payload": {}, "key": "k", "headers": {"h": "x"}, "cron": "1 1 * * *", "expires_s": 5},
        {"task": "t", "calendar": "FREQ=YEARLY", "end": "2027-01-01T00:00:00+00:00", "misfire_grace_s": 1},
    ],
)
def test_a_document_is_the_same_after_it_was_read(document) -> None:
    schedule = Schedule.of_document("s", document)

    assert schedule.document() == document
    assert Schedule.of_document("s", schedule.document()) == schedule


def test_a_time_of_a_file_without_a_zone_is_in_that_of_the_schedule() -> None:
    schedule = Schedule.of_document("s", {"task": "t", "at": "2026-07-01T12:00:00", "tz": BERLIN})

    assert schedule.at == datetime(2026, 7, 1, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({"cron": "* * * * *"}, "needs one of task, stream and topic"),
        ({"task": "t"}, "needs one of cron, every, at, calendar"),
        ({"task": "t", "cron": "* * * * *", "every_s": 5}, "needs one of cron"),
        ({"task": "t", "cron": "61 * * * *"}, "no cron expression: Bad minute"),
        ({"task": "t", "cron": "* * * * *", "tz": "Mars/Base"}, "not a time zone"),
        ({"task": "t", "every_s": 0.5}, "at least a second"),
        ({"task": "t", "calendar": "FREQ=HOURLY"}, "for others use cron"),
        ({"task": "t", "calendar": "FREQ=WEEKLY;INTERVAL=2"}, "needs a start"),
        ({"task": "t", "calendar": "FREQ=WEEKLY"}, "has no BYDAY, and so needs a start"),
        ({"task": "t", "calendar": "FREQ=DAILY;BYDAY=XX"}, "no rule of RFC 5545"),
        ({"task": "t", "calendar": "FREQ=WEEKLY;BYDAY=1MO"}, "BYDAY of .* must have no numbers"),
        ({"task": "t", "calendar": "FREQ=DAILY;BYDAY=-1FR"}, "BYDAY of .* must have no numbers"),
        ({"task": "t", "calendar": "FREQ=DAILY;BYHOUR=1;BYHOUR=2"}, "BYHOUR twice"),
        ({"task": "t", "calendar": "FREQ=YEARLY;BYEASTER=999999"}, "BYEASTER of .* must be from -80 to 250"),
        (
            {"task": "t", "calendar": "FREQ=YEARLY;INTERVAL=51", "start": "2026-01-01T00:00:00Z"},
            "INTERVAL of .* must be at most 50",
        ),
        ({"task": "t", "every_s": 5, "catch_up": "some"}, "catch_up must be one of"),
        ({"task": "t", "every_s": 5, "hours": 3}, "hours: not an option"),
        ({"task": "t", "every_s": 5, "payload": {}}, "payload does not belong to a schedule of a task"),
        ({"task": "t", "every_s": 5, "options": {"delay_s": 3}}, "delay_s: not an option"),
        ({"task": "t", "every_s": 5, "options": {"priority": 10}}, "priority must be"),
        ({"task": "t", "every_s": 5, "args": 3}, "args must have names"),
        ({"stream": "s", "key": "k", "every_s": 5}, "key does not belong"),
        ({"task": "t", "at": 5}, "must be a time with a zone"),
        ({"task": "t", "every_s": 5, "expires_s": 0}, "expires_s must be finite and above 0"),
        ({"task": "t", "every_s": 5, "catch_up": "none", "misfire_grace_s": 0}, "would enqueue nothing"),
        ({"topic": "t", "every_s": 5, "key": 7}, "key must be a str"),
        ({"topic": "t", "every_s": 5, "headers": {"h": 7}}, "headers must have strings"),
    ],
)
def test_a_wrong_document_is_refused_with_the_reason(document, reason) -> None:
    with pytest.raises(ValueError, match=f"schedule 's'.*{reason}"):
        Schedule.of_document("s", document)


@pytest.mark.parametrize("option", ["at", "start", "end"])
@pytest.mark.parametrize("fold", [0, 1])
def test_a_time_in_the_repeated_hour_is_equal_to_what_is_read_of_it(option, fold) -> None:
    moment = datetime(2026, 10, 25, 2, 30, fold=fold, tzinfo=ZoneInfo(BERLIN))
    times: dict[str, Any] = {option: moment}
    if option != "at":
        times["every"] = timedelta(hours=1)
    schedule = Schedule(name="s", target=TaskTarget("t"), **times)

    assert Schedule.of_document("s", schedule.document()) == schedule
    assert milliseconds_of(getattr(schedule, option)) == milliseconds_of(moment)


def test_an_at_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="must be a time with a zone"):
        Schedule(name="s", target=TaskTarget("t"), at=datetime(2026, 1, 1))


def test_a_stream_takes_no_headers() -> None:
    with pytest.raises(ValueError, match="payloads alone"):
        MessageTarget(kind="stream", name="s", payload={}, headers={"a": "b"})


@pytest.mark.parametrize("days", [0.01, 1, 40, 800])
@pytest.mark.parametrize("jitter_s", [0, 300])
def test_of_a_long_outage_the_last_occurrence_is_found_without_all_others(days, jitter_s) -> None:
    schedule = Schedule(
        name="s", target=TaskTarget("t"), cron="* * * * *", misfire_grace_s=0, jitter_s=jitter_s
    )
    begin = milliseconds_of(datetime(2026, 1, 1, tzinfo=UTC))
    now = begin + round(days * 86_400_000) + 30_500

    planned = plan(schedule, begin, now)

    [last] = planned.enqueued
    assert planned.next_planned_ms == last + 60_000
    assert schedule.due_ms(last) <= now < schedule.due_ms(last + 60_000)


@pytest.mark.parametrize("every_s", [1, 10])
def test_with_a_jitter_above_the_interval_and_the_grace_no_occurrence_is_skipped(every_s) -> None:
    schedule = Schedule.of("s", TaskTarget("t"), every=every_s, jitter_s=600, misfire_grace_s=1)
    begin = milliseconds_of(datetime(2026, 1, 1, tzinfo=UTC))
    enqueued: list[int] = []
    found, due = begin, schedule.due_ms(begin)
    now = begin
    while now < begin + 1_800_000:
        # A beat asks when the next one is due, or right after it has enqueued as many as it may at once.
        now = max(now + 1, due)
        planned = plan(schedule, found, now, due)
        enqueued += planned.enqueued
        assert planned.skipped == 0
        assert planned.next_planned_ms is not None
        assert planned.next_due_ms is not None
        found, due = planned.next_planned_ms, planned.next_due_ms

    assert enqueued == list(range(begin, begin + len(enqueued) * every_s * 1000, every_s * 1000))


@pytest.mark.parametrize(("jitter_s", "first_step"), [(0, 0), (150, 140), (300, 100), (4_000, 380)])
def test_after_a_long_outage_what_is_enqueued_is_before_what_comes_next(jitter_s, first_step) -> None:
    schedule = Schedule.of("s", TaskTarget("t"), every=100, jitter_s=jitter_s, misfire_grace_s=0)
    begin = milliseconds_of(datetime(2026, 1, 1, tzinfo=UTC))
    for step in range(first_step, first_step + 10):
        planned = plan(schedule, begin, begin + 120_000_000 + 7_001 * step)

        assert len(planned.enqueued) == 1
        assert planned.next_planned_ms is not None
        assert max(planned.enqueued) < planned.next_planned_ms


def test_the_due_times_of_the_next_occurrences_rise() -> None:
    schedule = Schedule.of("s", TaskTarget("t"), every=10, jitter_s=600)

    found = next_occurrences(schedule, 50, 0)

    assert [due for _, due in found] == sorted(due for _, due in found)
    assert all(schedule.due_ms(one) <= due for one, due in found)


OFFICE_HOURS = "FREQ=DAILY;BYDAY=MO,TU,WE,TH,FR;BYHOUR=1,2,3,9,17;BYMINUTE=0,15,30,45"


def test_a_calendar_that_is_asked_for_one_time_after_the_other_searches_once(monkeypatch) -> None:
    calendar, begun = Calendar(OFFICE_HOURS, BERLIN), []

    def parse(*rule: Any, **begin: Any) -> Any:
        begun.append(rule)
        return rrulestr(*rule, **begin)

    monkeypatch.setattr(timing_module, "rrulestr", parse)
    moment = milliseconds_of(datetime(2026, 1, 1, tzinfo=UTC))
    for _ in range(1_000):
        moment = calendar.next_after(moment) or 0

    assert len(begun) == 1


@pytest.mark.parametrize("tz", [BERLIN, NEW_YORK, LORD_HOWE])
def test_a_calendar_that_goes_on_with_its_search_has_the_times_of_a_new_one(tz) -> None:
    calendar, moment = Calendar(OFFICE_HOURS, tz), milliseconds_of(datetime(2026, 3, 1, tzinfo=UTC))
    for _ in range(600):
        following = calendar.next_after(moment)
        assert following == pickle.loads(pickle.dumps(calendar)).next_after(moment)
        moment = following or 0

    earlier = milliseconds_of(datetime(2026, 3, 1, tzinfo=UTC))
    assert calendar.next_after(earlier) == Calendar(OFFICE_HOURS, tz).next_after(earlier)


def test_a_calendar_with_a_count_ends_where_it_ends_also_if_it_is_asked_again() -> None:
    start = milliseconds_of(datetime(2026, 3, 1, tzinfo=UTC))
    calendar = Calendar("FREQ=DAILY;COUNT=2", start_ms=start)
    first = calendar.next_after(start - 1)
    second = calendar.next_after(first or 0)

    assert second == start + 86_400_000
    assert [calendar.next_after(second), calendar.next_after(second)] == [None, None]
    assert calendar.next_after(start - 1) == first == start


@pytest.mark.parametrize("catch_up", ["all", "last", "none"])
@pytest.mark.parametrize("late", [timedelta(hours=3, seconds=30), timedelta(hours=3, minutes=2)])
def test_plans_that_end_early_have_together_what_one_has(catch_up, late) -> None:
    minutes = Schedule(
        name="s", target=TaskTarget("t"), cron="*/7 * * * *", catch_up=catch_up, misfire_grace_s=90
    )
    noon = milliseconds_of(datetime(2026, 1, 15, 12, tzinfo=UTC))
    first, now_ms = minutes.next_after(noon) or 0, noon + late // timedelta(milliseconds=1)
    whole = plan(minutes, first, now_ms)

    steps = [plan(minutes, first, now_ms, is_time_over=lambda: True)]
    while (following := steps[-1].next_planned_ms or 0) < (whole.next_planned_ms or 0):
        steps.append(plan(minutes, following, now_ms, steps[-1].next_due_ms, is_time_over=lambda: True))

    assert len(steps) == 27
    assert tuple(one for step in steps for one in step.enqueued) == whole.enqueued
    assert sum(step.skipped for step in steps) == whole.skipped
    assert (steps[-1].next_planned_ms, steps[-1].next_due_ms) == (whole.next_planned_ms, whole.next_due_ms)
