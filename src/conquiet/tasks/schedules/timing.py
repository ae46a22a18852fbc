"""When a schedule is due: by a cron expression, at intervals, once, or by a calendar rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from conquiet.extras import needs_extra

with needs_extra("tasks", "cronsim", "dateutil", part="conquiet.tasks.schedules"):
    from cronsim import CronSim, CronSimError
    from dateutil.rrule import rrulestr

#: Parts of a calendar rule that count from its beginning, so that it needs one.
_COUNTED = ("INTERVAL", "COUNT")
_FREQUENCIES = ("DAILY", "WEEKLY", "MONTHLY", "YEARLY")
#: Parts that say on which days; without any of them a rule has the day of its beginning.
_DAYS = ("BYDAY", "BYMONTHDAY", "BYYEARDAY", "BYWEEKNO", "BYEASTER")
#: The least and the most of the numbers of a rule's parts; below 0 they count from the end, where that is so.
_RANGES = {
    "BYMONTH": (1, 12),
    "BYMONTHDAY": (-31, 31),
    "BYYEARDAY": (-366, 366),
    "BYWEEKNO": (-53, 53),
    "BYSETPOS": (-366, 366),
    # Days from Easter Sunday that are in its year.
    "BYEASTER": (-80, 250),
    "BYHOUR": (0, 23),
    "BYMINUTE": (0, 59),
    "BYSECOND": (0, 59),
}
#: Of each frequency the largest INTERVAL: 50 years.
_LONGEST_INTERVALS = {"DAILY": 18_262, "WEEKLY": 2_608, "MONTHLY": 600, "YEARLY": 50}
#: A rule that has no time for so long has none: a 29 February that is a Monday comes within 40 years.
_LONGEST_PAUSE = timedelta(days=50 * 366)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = timedelta(days=1)
#: No zone sets its clocks back by more.
_LONGEST_REPEAT = timedelta(hours=3)


class Timing(Protocol):
    """The times of a schedule, in order, without end unless it says so."""

    def next_after(self, moment_ms: int) -> int | None:
        """The first time after this one, ms since 1970; `None` if there is none."""


@dataclass(frozen=True)
class Cron:
    """A cron expression of five fields, or six with seconds first; at changes of clocks as Debian's cron."""

    expression: str
    tz: str = "UTC"

    def __post_init__(self) -> None:
        try:
            CronSim(self.expression, datetime(2026, 1, 1, tzinfo=zone(self.tz)))
        except CronSimError as error:
            raise ValueError(f"cron {self.expression!r} is no cron expression: {error}") from error

    def next_after(self, moment_ms: int) -> int | None:
        """As `Timing.next_after`."""
        moment = datetime_of(moment_ms).astimezone(zone(self.tz))
        found = self._first_after(moment.replace(tzinfo=None), moment_ms)
        repeat = None if self._is_fixed else _next_repeat(moment)
        if repeat is None or (found is not None and found < milliseconds_of(repeat)):
            return found
        # Times before the local time of `moment` come once more.
        return self._first_after(
            repeat.replace(tzinfo=None) - timedelta(seconds=1), milliseconds_of(repeat) - 1
        )

    @cached_property
    def _is_fixed(self) -> bool:
        """Whether it names times of the day, as Debian's cron decides; else it goes by the real time."""
        minute, hour = self.expression.split()[-5:-3]
        return not minute.startswith("*") and not hour.startswith("*")

    def _first_after(self, local: datetime, moment_ms: int) -> int | None:
        """The first time that comes after the local one, and after the moment."""
        tz = zone(self.tz)
        # Without a zone: cronsim goes through a changed hour by whole hours, and treats seconds differently.
        for found in CronSim(self.expression, local):
            first = _existing(found, tz)
            passes = [first]
            if not self._is_fixed:
                is_skipped = first.astimezone(UTC).astimezone(tz).replace(tzinfo=None) != found
                passes = [] if is_skipped else [first, first.replace(fold=1)]
            for one in map(milliseconds_of, passes):
                if one > moment_ms:
                    return one
        return None


@dataclass(frozen=True)
class Every:
    """Times that are equally far apart, whatever the clocks of a zone show."""

    interval_ms: int
    #: One of the times, ms since 1970.
    anchor_ms: int = 0

    def __post_init__(self) -> None:
        if self.interval_ms < 1_000:
            raise ValueError(f"every must be at least a second, got {self.interval_ms} ms")

    def next_after(self, moment_ms: int) -> int | None:
        """As `Timing.next_after`."""
        return moment_ms + self.interval_ms - (moment_ms - self.anchor_ms) % self.interval_ms


@dataclass(frozen=True)
class At:
    """One time."""

    at_ms: int

    def next_after(self, moment_ms: int) -> int | None:
        """As `Timing.next_after`."""
        return self.at_ms if self.at_ms > moment_ms else None


@dataclass(frozen=True)
class Calendar:
    """A rule of RFC 5545, such as the last working day of the month; by days, not by hours."""

    rule: str
    tz: str = "UTC"
    #: Where a rule with INTERVAL or COUNT, or without a day, begins, ms since 1970.
    start_ms: int | None = None

    def __post_init__(self) -> None:
        parts = self._parts
        if parts.get("FREQ") not in _FREQUENCIES:
            raise ValueError(
                f"calendar {self.rule!r} must have a FREQ of {', '.join(_FREQUENCIES)}; for others use cron"
            )
        if self.start_ms is None and self._is_counted:
            raise ValueError(
                f"calendar {self.rule!r} has INTERVAL or COUNT, and so needs a start to count from"
            )
        if self.start_ms is None and parts["FREQ"] == "WEEKLY" and not self._has_day:
            raise ValueError(
                f"calendar {self.rule!r} has no BYDAY, and so needs a start for its day of the week"
            )
        if "UNTIL" in parts or "DTSTART" in self.rule.upper():
            raise ValueError(f"calendar {self.rule!r} must not have DTSTART or UNTIL: give start and end")
        zone(self.tz)
        self._check_numbers()
        after = datetime(2026, 1, 1)
        if self.start_ms is not None:
            after = max(after, datetime_of(self.start_ms).astimezone(zone(self.tz)).replace(tzinfo=None))
        try:
            first = next(self._moments(after, is_without_count=True), None)
        except (ValueError, TypeError) as error:
            raise ValueError(f"calendar {self.rule!r} is no rule of RFC 5545: {error}") from error
        if first is None:
            raise ValueError(f"calendar {self.rule!r} is never due in the next 50 years")

    def next_after(self, moment_ms: int) -> int | None:
        """As `Timing.next_after`."""
        # A search takes milliseconds to begin, and a plan after an outage asks for a thousand times in turn.
        # Taken out: no two threads may share an iterator.
        moments = self._searches.pop(moment_ms, None)
        found_ms = None if moments is None else self._first_after(moments, moment_ms)
        if moments is None or found_ms is None:
            local = datetime_of(moment_ms).astimezone(zone(self.tz)).replace(tzinfo=None)
            # From a day before: a time that the clocks skip is later than the rule says.
            moments = self._moments(local - _DAY)
            found_ms = self._first_after(moments, moment_ms)
        self._searches.clear()
        if found_ms is not None:
            self._searches[found_ms] = moments
        return found_ms

    def __reduce__(self) -> tuple[Any, ...]:
        # An iterator cannot be pickled.
        return Calendar, (self.rule, self.tz, self.start_ms)

    @cached_property
    def _searches(self) -> dict[int, Iterator[datetime]]:
        """The last time that was found, and the iterator that goes on behind it."""
        return {}

    def _first_after(self, moments: Iterator[datetime], moment_ms: int) -> int | None:
        for found in moments:
            moment = _existing(found, zone(self.tz))
            if self._begins_with_start and milliseconds_of(moment) < (self.start_ms or 0):
                # It starts in an hour that is there twice, the second time.
                moment = moment.replace(fold=1)
            found_ms = milliseconds_of(moment)
            if found_ms > moment_ms:
                return found_ms
        return None

    def _check_numbers(self) -> None:
        """Refuse numbers with which dateutil would search for ever, or take another rule for this one."""
        for name in _COUNTED:
            if name in self._parts and not (self._parts[name].isdecimal() and int(self._parts[name])):
                raise ValueError(f"{name} of calendar {self.rule!r} must be a whole number above 0")
        if int(self._parts.get("INTERVAL", 1)) > (most := _LONGEST_INTERVALS[self._parts["FREQ"]]):
            raise ValueError(f"INTERVAL of calendar {self.rule!r} must be at most {most}: 50 years")
        numbered = any(character.isdecimal() for character in self._parts.get("BYDAY", ""))
        if numbered and self._parts["FREQ"] in ("DAILY", "WEEKLY"):
            raise ValueError(
                f"BYDAY of calendar {self.rule!r} must have no numbers: those are of MONTHLY or YEARLY"
            )
        for name, (least, most) in _RANGES.items():
            has_zero = least == 0 or name == "BYEASTER"
            for text in self._parts[name].split(",") if name in self._parts else ():
                number = int(text) if text.strip().lstrip("+-").isdecimal() else None
                if number is None or not least <= number <= most or (number == 0 and not has_zero):
                    without = "" if has_zero else " without 0"
                    allowed = f"from {least} to {most}{without}"
                    raise ValueError(f"{name} of calendar {self.rule!r} must be {allowed}, got {text!r}")

    @cached_property
    def _parts(self) -> dict[str, str]:
        parts: dict[str, str] = {}
        for part in self.rule.upper().removeprefix("RRULE:").split(";"):
            name, _, value = part.partition("=")
            if name.strip() in parts:
                raise ValueError(f"calendar {self.rule!r} has {name.strip()} twice: give one, as 1,2")
            parts[name.strip()] = value.strip()
        return parts

    @cached_property
    def _is_counted(self) -> bool:
        return self._parts.get("INTERVAL", "1") != "1" or "COUNT" in self._parts

    @cached_property
    def _has_day(self) -> bool:
        return self._parts["FREQ"] == "DAILY" or any(name in self._parts for name in _DAYS)

    @cached_property
    def _begins_with_start(self) -> bool:
        return self.start_ms is not None and (self._is_counted or not self._has_day)

    def _moments(self, after: datetime, *, is_without_count: bool = False) -> Iterator[datetime]:
        parts = dict(self._parts)
        if is_without_count:
            parts.pop("COUNT", None)
        if self._has_day:
            parts = {"BYHOUR": "0", "BYMINUTE": "0", "BYSECOND": "0", **parts}
        if self._begins_with_start:
            # A whole second, and not before the start: there it would not be due, and be counted.
            second_ms = -(-(self.start_ms or 0) // 1000) * 1000
            first = datetime_of(second_ms).astimezone(zone(self.tz)).replace(tzinfo=None)
        else:
            # Any first day of a month, or of a year, gives the same times, and a near one gives them sooner.
            first = datetime(after.year - 1, 1, 1)
            if self._parts["FREQ"] != "YEARLY":
                first = (after.replace(day=1, hour=0, minute=0, second=0, microsecond=0) - _DAY).replace(
                    day=1
                )
            parts = {"BYHOUR": "0", "BYMINUTE": "0", "BYSECOND": "0", **parts}
        if "COUNT" not in parts:
            # Without an end dateutil would search up to the year 9999.
            parts["UNTIL"] = f"{max(after, first) + _LONGEST_PAUSE:%Y%m%dT%H%M%S}"
        rule = ";".join(f"{name}={value}" for name, value in parts.items())
        return iter(rrulestr(rule, dtstart=first).xafter(after))


@dataclass(frozen=True)
class Carried:
    """Up to an edit the times that were missed before it and are of both the old and the new timing."""

    times: tuple[int, ...]
    until_ms: int
    timing: Timing

    def next_after(self, moment_ms: int) -> int | None:
        """As `Timing.next_after`."""
        carried = next((one for one in self.times if one > moment_ms), None)
        return self.timing.next_after(max(moment_ms, self.until_ms)) if carried is None else carried


def zone(name: str) -> ZoneInfo:
    """A time zone by its name, such as Europe/Berlin.

    Raises:
        ValueError: this machine does not know it.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError) as error:
        raise ValueError(f"tz {name!r} is not a time zone that this machine knows: {error}") from error


def datetime_of(moment_ms: int) -> datetime:
    """In UTC."""
    return _EPOCH + timedelta(milliseconds=moment_ms)


def milliseconds_of(moment: datetime) -> int:
    """Since 1970."""
    return (moment.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)


def _next_repeat(moment: datetime) -> datetime | None:
    """When the clocks are set back, if that is soon: the first moment whose local time was there before."""
    tz = moment.tzinfo
    low, high = moment.astimezone(UTC), moment.astimezone(UTC) + _LONGEST_REPEAT
    offset = moment.utcoffset()
    if high.astimezone(tz).utcoffset() >= offset:  # type: ignore[operator]
        return None
    while high - low > timedelta(milliseconds=1):
        middle = low + (high - low) / 2
        low, high = (middle, high) if middle.astimezone(tz).utcoffset() == offset else (low, middle)
    return high.replace(microsecond=0).astimezone(tz)


def _existing(local: datetime, tz: ZoneInfo) -> datetime:
    """A local time in its zone: of two the first, and the end of the gap for one that the clocks skip."""
    moment = local.replace(tzinfo=tz)
    if moment.astimezone(UTC).astimezone(tz).replace(tzinfo=None) == local:
        return moment
    # With fold=0 a time in the gap has the offset from before it, and with fold=1 the one from behind it:
    # together they say how far the clocks were put forward.
    before, behind = moment.utcoffset(), moment.replace(fold=1).utcoffset()
    low, high = local - (behind - before), local  # type: ignore[operator]
    while high - low > timedelta(seconds=1):
        middle = low + (high - low) / 2
        is_in_gap = middle.replace(tzinfo=tz).astimezone(UTC).astimezone(tz).replace(tzinfo=None) != middle
        low, high = (low, middle) if is_in_gap else (middle, high)
    return high.replace(microsecond=0, tzinfo=tz)
