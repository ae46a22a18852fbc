"""A day of 200 schedules whose leaders are killed at random: what is planned is enqueued, each once."""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from dateutil.rrule import rrulestr

from conquiet.tasks import TaskApp, clock
from conquiet.tasks.beat import Beat, BeatConfig
from conquiet.tasks.schedules.schedule import ScheduleOptions
from conquiet.tasks.schedules.store import ScheduleStore
from conquiet.tasks.schedules.timing import datetime_of, milliseconds_of

SEED = 10
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe")
#: A day with a change of clocks in Berlin.
BEGIN = datetime(2026, 3, 28, 12, 0, 30, tzinfo=UTC)
END = BEGIN + timedelta(hours=24)


class KilledError(BaseException):
    """The process of a beat is gone: no handler of an error sees it."""


class DeadlyStore:
    """A store in which one call in `odds` is the last one of its beat, before or after its effect."""

    def __init__(self, store: ScheduleStore, dice: random.Random, odds: int) -> None:
        self._store = store
        self._dice = dice
        self._odds = odds

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def call(*args: Any, **options: Any) -> Any:
            is_last = self._dice.randrange(self._odds) == 0
            if is_last and self._dice.random() < 0.5:
                raise KilledError
            result = method(*args, **options)
            if is_last:
                raise KilledError
            return result

        return call


@pytest.fixture
def app(valkey_url: str) -> Iterator[TaskApp]:
    with TaskApp(valkey_url, namespace=f"tasks-{uuid.uuid4().hex[:10]}") as opened:
        yield opened
    clock.set_clock(None)


def expressions(dice: random.Random) -> dict[str, tuple[str, str]]:
    """180 cron expressions, from each minute to once a day, and 20 rules of calendars, in four zones."""
    minute = lambda: dice.randrange(60)  # noqa: E731
    kinds = [
        lambda: f"*/{dice.choice((5, 7, 10, 15))} * * * *",
        lambda: f"{minute()} * * * *",
        lambda: f"{minute()} */{dice.choice((2, 3, 6))} * * *",
        lambda: f"{minute()} {dice.randrange(24)} * * *",
        lambda: f"{minute()},{minute()} 0-5 * * *",
        lambda: f"{minute()} {dice.randrange(5)} * * SAT,SUN",
    ]
    # None of them in an hour that Berlin's clocks skip.
    rule = lambda: f"FREQ=DAILY;BYHOUR={dice.randrange(4, 24)};BYMINUTE={minute()}"  # noqa: E731
    return {
        f"s{number}": (
            rule() if number >= 180 else dice.choice(kinds)() if number > 3 else "* * * * *",
            dice.choice(ZONES),
        )
        for number in range(200)
    }


def library_says(expression: str, tz: str) -> Iterator[int]:
    if expression.startswith("FREQ="):
        day = BEGIN.astimezone(ZoneInfo(tz)).replace(hour=0, minute=0, second=0, tzinfo=None)
        for local in rrulestr(expression, dtstart=day):
            moment = local.replace(tzinfo=ZoneInfo(tz))
            if moment.astimezone(UTC) > END:
                return
            if moment.astimezone(UTC) > BEGIN:
                yield milliseconds_of(moment)
    for moment in CronSim(expression, BEGIN.astimezone(ZoneInfo(tz))):
        if moment.astimezone(UTC) > END:
            return
        yield milliseconds_of(moment)


@pytest.mark.parametrize("is_clustered", [False, True], ids=["one server", "as on a cluster"])
def test_a_day_of_killed_leaders_misses_nothing_and_doubles_nothing(app: TaskApp, is_clustered: bool) -> None:
    dice = random.Random(SEED)
    schedules = expressions(dice)
    clock.set_clock(milliseconds_of(BEGIN))
    queues = ("a", "b", "c")
    for number, (name, (expression, tz)) in enumerate(schedules.items()):
        # Half of them keep nothing by which a second one could be known.
        options = {"queue": queues[number % 3], "ignore_result": number % 2 == 0}
        task = app.task(name=f"t{number}", **options)(lambda: None)
        when: ScheduleOptions = {"tz": tz, "catch_up": "all"}
        when["calendar" if expression.startswith("FREQ=") else "cron"] = expression
        app.schedules.apply(app.new_schedule(name, task, **when))
    store = app.schedules.store
    store._is_cluster = is_clustered  # type: ignore[attr-defined]
    app.schedules.__dict__["store"] = DeadlyStore(store, dice, odds=25)

    killed, beats, now = 0, [Beat(app), Beat(app)], BEGIN
    while now < END or beats:
        now = min(END, now + timedelta(seconds=dice.randrange(1, 90)))
        clock.set_clock(milliseconds_of(now))
        for number, beat in enumerate(beats):
            try:
                while beat.tick().wait_ms == 0:
                    pass
            except KilledError:
                killed += 1
                beats[number] = Beat(app, BeatConfig(lease_ttl_s=dice.choice((2.5, 10.0, 60.0))))
        if now == END:
            # The last minutes: those that live on without an accident do what is left.
            app.schedules.__dict__["store"] = store
            clock.set_clock(milliseconds_of(END) + 120_000)
            last = Beat(app)
            while (report := last.tick()).wait_ms == 0:
                assert report.is_leading
            beats = []

    client: Any = app.client
    enqueued: Counter[tuple[str, int]] = Counter()
    for queue in queues:
        for _, fields in client.xrange(app.keys(queue).streams[5]):
            _, name, planned = json.loads(fields[b"data"])["id"].split(":")
            enqueued[name, int(planned)] += 1
    expected = Counter((name, one) for name, cron in schedules.items() for one in library_says(*cron))
    # What came due in the two minutes after the day is not of this day.
    of_this_day = Counter({key: count for key, count in enqueued.items() if datetime_of(key[1]) <= END})
    assert of_this_day == expected
    assert set(enqueued.values()) == {1}
    assert killed > 50
    assert len(expected) > 10_000
