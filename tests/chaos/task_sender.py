"""Enqueues the jobs of a run through every outage, each once, and keeps what was enqueued."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

import redis

from conquiet.errors import QueueError
from conquiet.tasks import TaskApp, chain, chord
from tests.chaos.task_app import make_app
from tests.chaos.task_findings import count_backlog
from tests.chaos.task_plan import DB, NAP, Job, TaskPlan, jobs
from tests.eventually import HANG_S

_REPEATED_SHARE = 0.02
_LOOK_AT_BACKLOG_EVERY = 20
#: Longer than the longest outage.
_UNIQUE_FOR_S = 3_600


@dataclass(frozen=True, slots=True, kw_only=True)
class SentTask:
    """One task that was enqueued, or will be by a canvas."""

    name: str
    queue: str


@dataclass(slots=True)
class SentTasks:
    """All of them."""

    #: By their ids.
    tasks: dict[str, SentTask] = field(default_factory=dict)
    #: Of each body of a chord the ids of its members, and of each last step of a chain the one before.
    before: dict[str, tuple[str, ...]] = field(default_factory=dict)
    chords: set[str] = field(default_factory=set)

    def add(self, job: Job, task_id: str) -> None:
        """A job was enqueued; the id is that of its last task."""
        if job.kind in ("chord", "chain"):
            names = _names(job)
            # The ids of a canvas are its own and a number, in the order of its steps.
            self.before[task_id] = tuple(f"{job.id}.{number}" for number in range(1, len(names)))
            for one, name in zip((*self.before[task_id], task_id), names, strict=True):
                self.tasks[one] = SentTask(name=name, queue=NAP if name == "nap" else DB)
            if job.kind == "chord":
                self.chords.add(task_id)
        else:
            self.tasks[task_id] = SentTask(name=job.kind, queue=NAP if job.kind == "nap" else DB)


class TaskSender:
    """A thread that sends from the start of a `with` block, no faster than workers work."""

    def __init__(self, url: str, plan: TaskPlan) -> None:
        self._app = make_app(url, None, plan.seed)
        self._url = url
        self._plan = plan
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._send_all, daemon=True)
        self.sent = SentTasks()
        #: Calls that failed and were made again, and those that were made again for no reason.
        self.failed = 0
        self.repeated = 0
        self.problems: list[str] = []

    @property
    def is_done(self) -> bool:
        """Whether all jobs are sent, or it gave up."""
        return not self._thread.is_alive()

    @property
    def count(self) -> int:
        """How many tasks are sent."""
        return len(self.sent.tasks)

    def _send_all(self) -> None:
        rng = random.Random(f"{self._plan.seed}:sender")
        try:
            for number, job in enumerate(jobs(self._plan)):
                if number % _LOOK_AT_BACKLOG_EVERY == 0:
                    self._wait_for_workers()
                task_id = self._send(job)
                self.sent.add(job, task_id)
                if rng.random() < _REPEATED_SHARE:
                    self.repeated += 1
                    if (again := self._send(job)) != task_id:
                        self.problems.append(f"{job.id} was enqueued as {task_id} and again as {again}")
        except Exception as error:
            self.problems.append(f"the sender gave up: {error!r}")

    def _wait_for_workers(self) -> None:
        with redis.Redis.from_url(self._url, decode_responses=True) as client:
            while not self._is_over.is_set():
                with suppress(redis.RedisError):
                    if count_backlog(client) < self._plan.backlog:
                        return
                self._is_over.wait(timeout=0.1)

    def _send(self, job: Job) -> str:
        while not self._is_over.is_set():
            try:
                return enqueue(self._app, job)
            except QueueError:
                # It may have been enqueued all the same, or half of it.
                self.failed += 1
                time.sleep(0.05)
        raise RuntimeError("the run is over")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(timeout=HANG_S)
        self._app.close()


def enqueue(app: TaskApp, job: Job) -> str:
    """Enqueue it, unless it was before; returns the id of its last task."""
    tasks, numbers = app.tasks, job.numbers
    if job.kind == "chord":
        calls = [
            tasks[name].call(number=number)
            for name, number in zip(_names(job)[:-1], numbers[:-1], strict=True)
        ]
        return chord(calls, tasks["join"].partial(expected=list(numbers))).enqueue(id=job.id).id
    if job.kind == "chain":
        first, second = numbers
        steps = (tasks["nap"].call(number=first), tasks["after"].partial(number=second))
        return chain(*steps).enqueue(id=job.id).id
    options: dict[str, float] = {"unique_for_s": _UNIQUE_FOR_S, "priority": 1 + numbers[0] % 9}
    if numbers[0] % 10 == 0:
        options["delay_s"] = 0.3
    return tasks[job.kind].with_options(**options).enqueue(number=numbers[0]).id


def _names(job: Job) -> list[str]:
    """The names of the tasks of a canvas, in order."""
    if job.kind == "chain":
        return ["nap", "after"]
    members = ["effect"] * (len(job.numbers) - 1)
    if job.is_doomed:
        members[-1] = "doomed"
    return [*members, "join"]
