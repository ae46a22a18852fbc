"""The errors of schedules."""

from __future__ import annotations

from conquiet.tasks.errors import TaskError


class UnknownScheduleError(TaskError):
    """There is no schedule of this name.

    Examples:
        >>> try:
        ...     app.schedules.get("never")
        ... except UnknownScheduleError as error:
        ...     print(error.name)
        never
    """

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"there is no schedule {name!r}")


class ScheduleChangedError(TaskError):
    """Somebody else has changed the schedule.

    Examples:
        >>> schedule = app.new_schedule("yearly", total, {"cents": []}, cron="0 0 1 1 *")
        >>> version, is_changed = app.schedules.apply(schedule)
        >>> try:
        ...     app.schedules.delete("yearly", version=version + 1)
        ... except ScheduleChangedError as error:
        ...     print("read it again, and decide again")
        read it again, and decide again
    """

    def __init__(self, name: str, *, expected: int, version: int) -> None:
        self.name = name
        self.expected = expected
        self.version = version
        now = f"is at version {version}" if version else "is not there"
        super().__init__(
            f"schedule {name!r} {now}, not at version {expected}: read it again, and change that"
        )
