"""Schedule: what is enqueued when; the same in code, in files and in Redis."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, fields
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import Any, Literal, Self, TypedDict, get_args

from conquiet.arguments import check_name, check_positive_seconds
from conquiet.tasks.schedules.target import TARGET_KEYS, Target, target_of
from conquiet.tasks.schedules.timing import At, Calendar, Carried, Cron, Every, Timing, milliseconds_of, zone

CatchUp = Literal["all", "last", "none"]

_TIMINGS = ("cron", "every", "at", "calendar")
#: No calculation with times reaches the last year that Python knows.
_LAST_YEAR, _LONGEST = 9000, timedelta(days=36_525)


class ScheduleOptions(TypedDict, total=False):
    """How a schedule is given beside its name and its target; see `Schedule`."""

    cron: str
    every: timedelta | float
    at: datetime
    calendar: str
    tz: str
    start: datetime
    end: datetime
    jitter_s: float
    expires_s: float
    catch_up: CatchUp
    misfire_grace_s: float
    enabled: bool
    description: str


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What is enqueued when; one of `cron`, `every`, `at` and `calendar` says when.

    Examples:
        >>> schedule = app.schedule("nightly", total, {"cents": []}, cron="0 2 * * *", tz="Europe/Berlin")
        >>> schedule.name
        'nightly'
    """

    name: str
    target: Target
    #: Five fields, or six with seconds first; in the time zone `tz`.
    cron: str | None = None
    #: Counted from `start`, or from 1970-01-01 in UTC.
    every: timedelta | None = None
    #: Once.
    at: datetime | None = None
    #: A rule of RFC 5545, in the time zone `tz`.
    calendar: str | None = None
    tz: str = "UTC"
    #: No occurrence before, and none after.
    start: datetime | None = None
    end: datetime | None = None
    #: Each occurrence is due by up to so much later, by a number that its name and time give.
    jitter_s: float = 0.0
    #: Its task is not run later than this after its planned time.
    expires_s: float | None = None
    #: Which occurrences that are later than `misfire_grace_s` are enqueued: all, the last one, or none.
    catch_up: CatchUp = "last"
    misfire_grace_s: float = 60.0
    #: Of a new schedule; later `enable` and `disable` decide.
    enabled: bool = True
    description: str = ""

    def __post_init__(self) -> None:
        check_name("name", self.name)
        given = [name for name in _TIMINGS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"schedule {self.name!r} needs one of {', '.join(_TIMINGS)}, got {given or 'none'}"
            )
        for name in ("cron", "calendar", "tz", "description"):
            text = getattr(self, name)
            if text is not None and not isinstance(text, str):
                raise TypeError(f"{name} of schedule {self.name!r} must be a text, got {text!r}")
        for name in ("at", "start", "end"):
            moment = getattr(self, name)
            if moment is not None and (not isinstance(moment, datetime) or moment.tzinfo is None):
                raise ValueError(
                    f"{name} of schedule {self.name!r} must be a time with a zone, got {moment!r}"
                )
            if moment is not None and moment.year > _LAST_YEAR:
                raise ValueError(f"{name} of schedule {self.name!r} must be before the year {_LAST_YEAR}")
            if moment is not None:
                # A time of an hour that is there twice is equal to none of another zone.
                offset = timezone(moment.utcoffset())  # type: ignore[arg-type]  # it has a zone
                object.__setattr__(self, name, moment.astimezone(offset))
        self._check_order()
        for name in ("jitter_s", "misfire_grace_s", "expires_s"):
            self._check_seconds(name)
        if self.every is not None:
            self._check_every(self.every)
        if self.catch_up not in get_args(CatchUp):
            raise ValueError(f"catch_up must be one of {', '.join(get_args(CatchUp))}, got {self.catch_up!r}")
        if self.catch_up == "none" and not self.misfire_grace_s:
            raise ValueError(
                'catch_up "none" with misfire_grace_s 0 would enqueue nothing: each one is a little late'
            )
        if not isinstance(self.enabled, bool):
            raise TypeError(f"enabled must be a bool, got {self.enabled!r}")
        zone(self.tz)
        _ = self.timing

    def _check_order(self) -> None:
        bounds = [moment for moment in (self.start, self.at, self.end) if moment is not None]
        if bounds != sorted(bounds):
            raise ValueError(
                f"schedule {self.name!r} is never due: start, at and end must be in this order, "
                f"got {', '.join(map(str, bounds))}"
            )

    def _check_seconds(self, name: str) -> None:
        seconds = getattr(self, name)
        if name == "expires_s" and seconds is None:
            return
        if seconds != 0 or isinstance(seconds, bool) or name == "expires_s":
            check_positive_seconds(name, seconds)
        if seconds > _LONGEST.total_seconds():
            raise ValueError(f"{name} of schedule {self.name!r} must be at most 100 years, got {seconds} s")

    def _check_every(self, every: timedelta) -> None:
        if not isinstance(every, timedelta):
            raise TypeError(f"every of schedule {self.name!r} must be a time, or seconds, got {every!r}")
        if every > _LONGEST or every % timedelta(milliseconds=1):
            allowed = "whole milliseconds and at most 100 years"
            raise ValueError(f"every of schedule {self.name!r} must be {allowed}, got {every}")

    @classmethod
    def of(cls, name: str, target: Target, **options: Any) -> Self:
        """As `app.schedule` is given it; `every` may be a number of seconds."""
        every = options.get("every")
        if isinstance(every, int | float) and not isinstance(every, bool):
            # The float of a number of milliseconds is a little beside it.
            options["every"] = timedelta(microseconds=round(every * 1_000_000))
        unknown = options.keys() - ScheduleOptions.__annotations__.keys()
        if unknown:
            raise TypeError(f"{', '.join(sorted(unknown))}: not an option of a schedule")
        return cls(
            name=name, target=target, **{key: value for key, value in options.items() if value is not None}
        )

    @classmethod
    def of_document(cls, name: str, document: Mapping[str, Any]) -> Self:
        """As a file or Redis has it.

        Raises:
            ValueError: with the reason.
        """
        options = {key: value for key, value in document.items() if key not in TARGET_KEYS}
        unknown = options.keys() - ({"every_s", *ScheduleOptions.__annotations__} - {"every"})
        if unknown:
            listed = ", ".join(sorted(map(str, unknown)))
            raise ValueError(f"schedule {name!r}: {listed}: not an option of a schedule in a file")
        try:
            options["every"] = options.pop("every_s", None)
            for key in ("at", "start", "end"):
                options[key] = _moment(key, options.get(key), document.get("tz") or "UTC")
            return cls.of(name, target_of(document), **options)
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"schedule {name!r}: {error}") from error

    def document(self) -> dict[str, Any]:
        """As JSON values; what is as by default is left out."""
        document = self.target.document()
        for key in ScheduleOptions.__annotations__:
            value = getattr(self, key)
            if key in _TIMINGS or value != _DEFAULTS[key]:
                document[key] = value.isoformat() if isinstance(value, datetime) else value
        every = document.pop("every")
        if every is not None:
            document["every_s"] = every.total_seconds()
        return {key: value for key, value in document.items() if value is not None}

    @cached_property
    def timing(self) -> Timing:
        """When it is due, but for `start`, `end` and jitter."""
        start_ms = None if self.start is None else milliseconds_of(self.start)
        if self.cron is not None:
            return Cron(self.cron, self.tz)
        if self.every is not None:
            return Every(self.every // timedelta(milliseconds=1), start_ms or 0)
        if self.at is not None:
            return At(milliseconds_of(self.at))
        return Calendar(self.calendar or "", self.tz, start_ms)

    def carrying(self, times: tuple[int, ...], until_ms: int) -> Self:
        """The same with these planned times alone up to an edit of its times."""
        carrying = copy(self)
        carrying.__dict__["timing"] = Carried(times, until_ms, self.timing)
        return carrying

    def next_after(self, moment_ms: int) -> int | None:
        """The planned time of the first occurrence after this time; `None` if there is none."""
        if self.start is not None:
            moment_ms = max(moment_ms, milliseconds_of(self.start) - 1)
        found = self.timing.next_after(moment_ms)
        if found is None or (self.end is not None and found > milliseconds_of(self.end)):
            return None
        return found

    def due_ms(self, planned_ms: int) -> int:
        """When an occurrence is due: its planned time and its jitter, always the same."""
        if not self.jitter_s:
            return planned_ms
        digest = hashlib.sha256(f"{self.name}@{planned_ms}".encode()).digest()
        return planned_ms + int.from_bytes(digest[:8]) % (round(self.jitter_s * 1000) + 1)

    def occurrence_id(self, planned_ms: int) -> str:
        """The id of the task, or the dedupe id of the message, of one occurrence."""
        return f"beat:{self.name}:{planned_ms}"


_DEFAULTS: dict[str, Any] = {one.name: one.default for one in fields(Schedule)}


def _moment(name: str, value: Any, tz: str) -> Any:
    """A time of a file; one without a zone is in that of the schedule."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError as error:
            raise ValueError(f"{name} must be a time such as 2026-05-01T10:00:00Z, got {value!r}") from error
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=zone(tz))
    return value
