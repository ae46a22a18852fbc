"""What a schedule enqueues, as code gives it: a task, its name, or a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conquiet.tasks.schedules import MessageTarget, TaskTarget
from conquiet.tasks.schedules.target import Target, changed_options
from conquiet.tasks.task import Task

#: Also a task `with_options(...)`.
Scheduled = Task[..., Any] | MessageTarget | str


def scheduled_target(
    tasks: Mapping[str, Task[..., Any]], given: Scheduled, args: Mapping[str, Any] | None
) -> Target:
    """The target of a schedule; arguments of a task that is known here are validated.

    Raises:
        TaskArgumentsError: they do not fit the task's signature.
    """
    if isinstance(given, MessageTarget):
        if args is not None:
            raise TypeError("args are of a task: a message has its payload")
        return given
    known = tasks.get(given) if isinstance(given, str) else given
    if known is None:
        return TaskTarget(str(given), dict(args or {}))
    changed = changed_options(known.options, tasks.get(known.name, known).options)
    return TaskTarget(known.name, known.signature.dump((), args or {}), changed)
