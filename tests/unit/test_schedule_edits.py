"""What an edit keeps of the times that were missed before it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from conquiet.tasks import Schedule, TaskTarget
from conquiet.tasks.schedules.edits import edited
from conquiet.tasks.schedules.store import StoredSchedule
from conquiet.tasks.schedules.timing import Calendar, milliseconds_of

NOW = milliseconds_of(datetime(2026, 11, 18, 12, tzinfo=UTC))
HOURS = ",".join(map(str, range(24)))
EVERY_HALF_HOUR = f"FREQ=DAILY;BYHOUR={HOURS};BYMINUTE=0,30"


def schedule_of(**options: Any) -> Schedule:
    return Schedule(name="s", target=TaskTarget("t"), catch_up="all", **options)


def carried(before: Schedule, after: Schedule, missed_for: timedelta) -> tuple[int, ...]:
    """The times that are kept, after nothing was enqueued for so long."""
    first = before.next_after(NOW - missed_for // timedelta(milliseconds=1))
    seen = StoredSchedule(
        name="s",
        definition=b"",
        version=1,
        is_enabled=True,
        planned_ms=first,
        due_ms=first,
        planned_due_ms=first,
    )
    return edited(after, b"", NOW, seen, before).carried_ms


def missed(schedule: Schedule, missed_for: timedelta) -> Iterator[int]:
    found = schedule.next_after(NOW - missed_for // timedelta(milliseconds=1))
    while found is not None and found <= NOW:
        yield found
        found = schedule.next_after(found)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"cron": "*/5 * * * *"}, {"cron": "*/7 * * * *"}),
        ({"cron": "0 * * * *", "tz": "Europe/Berlin"}, {"calendar": EVERY_HALF_HOUR}),
        ({"calendar": EVERY_HALF_HOUR}, {"every": timedelta(seconds=90)}),
        ({"calendar": EVERY_HALF_HOUR}, {"calendar": "FREQ=DAILY;BYHOUR=9,15"}),
        ({"calendar": "FREQ=DAILY;BYHOUR=9,15"}, {"calendar": EVERY_HALF_HOUR}),
        ({"every": timedelta(hours=1)}, {"at": datetime(2026, 11, 17, 5, tzinfo=UTC)}),
        ({"every": timedelta(hours=1)}, {"cron": "0 */2 * * *", "end": datetime(2026, 11, 17, tzinfo=UTC)}),
    ],
)
def test_an_edit_keeps_what_was_missed_and_is_of_both_times(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    one, other, days = schedule_of(**before), schedule_of(**after), timedelta(days=2)

    expected = sorted({*missed(one, days)} & {*missed(other, days)})

    assert carried(one, other, days) == tuple(expected)
    assert expected


def test_an_edit_does_not_search_a_calendar_anew_for_each_time_that_was_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searches, search = [], Calendar._moments

    def counted(self: Calendar, *args: Any, **options: Any) -> Iterator[datetime]:
        searches.append(args)
        return search(self, *args, **options)

    before = schedule_of(calendar=EVERY_HALF_HOUR)
    after = schedule_of(calendar=EVERY_HALF_HOUR, jitter_s=5)
    monkeypatch.setattr(Calendar, "_moments", counted)

    assert len(carried(before, after, timedelta(days=15))) == 720
    assert len(searches) < 20
