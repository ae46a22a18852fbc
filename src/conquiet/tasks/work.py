"""Work: what a caller that is itself tried again has done by a task, and by one task at a time."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal, get_args

from conquiet.arguments import check_name, check_positive_int
from conquiet.tasks.app import TaskApp
from conquiet.tasks.handle import TaskHandle
from conquiet.tasks.record import TaskState
from conquiet.tasks.task import TaskCall

#: Which task of an earlier try is waited for, instead of another one being enqueued.
Attach = Literal["succeeded", "unfinished", "never"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A piece of work, by a name that is the same in every try of its caller.

    Ids of its tasks follow from the name: a try finds the task of an earlier one, and two tries at once
    cannot enqueue two. After a task that failed, was revoked or has expired, another one is enqueued.
    """

    name: str
    #: How many tries there may have been, this one included; each enqueued at most one task.
    tries: int = 1
    #: "succeeded": one that has not ended, or has succeeded. "unfinished": only one that has not ended.
    attach: Attach = "succeeded"

    def __post_init__(self) -> None:
        check_name("name", self.name)
        check_positive_int("tries", self.tries)
        if self.attach not in get_args(Attach):
            raise ValueError(f"attach must be one of {', '.join(get_args(Attach))}, got {self.attach!r}")

    def task_id(self, number: int) -> str:
        """The id of its first task, its second, and so on; no other task has one like it."""
        digest = hashlib.sha256(f"{self.name}\0{number}".encode()).digest()
        # An id that begins with a time begins with more than this since the year 2001.
        return f"{int.from_bytes(digest[:8]) % 10**12}-{int.from_bytes(digest[8:15])}"

    def enqueue(self, app: TaskApp, call: TaskCall) -> TaskHandle:
        """Enqueue the call, or return the handle of the task that an earlier try has enqueued.

        Raises:
            ValueError: an option of the call would leave nothing to wait for, or another caller's task.
        """
        options = call.options
        if options.ignore_result:
            raise ValueError("ignore_result keeps no state: nothing could wait for the task")
        if options.unique_for_s is not None:
            raise ValueError("unique_for_s: the task has its id from its caller, and is unique by that")
        if self.attach == "never":
            return app.send(call)
        # The last one with a record; from the last on, since the records of the first may have expired.
        tries = range(self.tries, 1, -1)
        known = (n for n in tries if app.results.status(self.task_id(n), options.queue) is not None)
        number = next(known, 1)
        while (status := app.results.status(self.task_id(number), options.queue)) is not None:
            has_succeeded = status.state is TaskState.SUCCEEDED
            if self.attach == "succeeded" if has_succeeded else not status.state.is_final:
                return TaskHandle(status.id, options.queue, call.name, is_new=False, _app=app)
            number += 1
        envelope = app.envelope(call)
        envelope.id = self.task_id(number)
        [handle] = app.send_envelopes([(envelope, options)])
        return handle
