"""One occurrence of a schedule now, beside its planned ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from conquiet.errors import TopicError
from conquiet.mq import Producer, Topics
from conquiet.queue import StreamWriter

if TYPE_CHECKING:
    from conquiet.tasks import MessageTarget, TaskApp, TaskTarget


def run_schedule_now(app: TaskApp, name: str) -> str:
    """Enqueue the task, or send the message, of a schedule once, also of a disabled one; returns its id.

    Its next occurrence, its count of runs and its history stay as they are.

    Raises:
        UnknownScheduleError: there is none of this name.
        ValueError: as `runnable_target`.
    """
    from conquiet.tasks import TaskCall, TaskTarget

    target = runnable_target(app, name)
    if isinstance(target, TaskTarget):
        task = app.tasks.get(target.task)
        declared = app.defaults if task is None else task.options
        options = replace(declared, delay_s=None, eta=None).but(**target.options)
        return app.send(TaskCall(target.task, target.args, options)).id
    payload = dict(target.payload)
    if target.kind == "stream":
        return StreamWriter(app.client, target.name).enqueue(payload)
    if Topics(app.client).open(target.name).layout == "bare_stream":
        raise TopicError(target.name, "is not there; `conquiet topics create` makes it")
    headers = {**target.headers, "schedule": name}
    return Producer(app.client).send(target.name, payload, key=target.key, headers=headers)


def runnable_target(app: TaskApp, name: str) -> TaskTarget | MessageTarget:
    """What a run of the schedule would enqueue.

    Raises:
        UnknownScheduleError: there is none of this name.
        ValueError: its definition cannot be read: not signed with a known key, or of a later version; or the
            app does not know its task, and so not its queue.
    """
    from conquiet.tasks import TaskTarget

    target = app.schedules.get(name).schedule.target
    if not isinstance(target, TaskTarget):
        return target
    if target.task not in app.tasks and "queue" not in target.options:
        raise ValueError(
            f"the queue of task {target.task!r} is not known here: give --app, with the app that has it"
        )
    return target
