"""Control: revokes tasks, pauses queues, changes rates, and asks the workers that run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Unpack

from conquiet.arguments import check_non_negative_int
from conquiet.queue.connection import Client
from conquiet.tasks.codec import EnvelopeCodec
from conquiet.tasks.control.broadcast import Broadcast, Request
from conquiet.tasks.control.letter_retry import RetryReport, retry_dead_letter, retry_dead_letters
from conquiet.tasks.control.letters import LetterFilter, TaskLetter, find_letter, purge_letters
from conquiet.tasks.control.listing import TaskListing, TaskPage, Where
from conquiet.tasks.control.payloads import UnneededPayloads
from conquiet.tasks.control.queues import QueueStats, read_stats
from conquiet.tasks.control.workers import WorkerDescription, live_workers
from conquiet.tasks.errors import PayloadPurgeError, PayloadStoreError
from conquiet.tasks.keys import QueueKeys
from conquiet.tasks.rates import Bucket, Rate, RateLimiter
from conquiet.tasks.record import TaskState
from conquiet.tasks.schedules import Schedules
from conquiet.tasks.scripts import control as scripts

#: What each worker answers within this time is returned; one that is alive answers in milliseconds.
TIMEOUT_S = 2.0
#: For so long a revoked task may be in its queue after it is due; as the record of one that has not ended.
_REVOKED_MS = 30 * 86_400_000
_RECORD_MS = 86_400_000
#: Of each queue.
_MOST_SCHEDULED = 100

#: What each worker answered, by its name; `None` for one that did not in time.
Answers = dict[str, dict[str, Any] | None]


class ControlledApp(Protocol):
    """What control needs of an app."""

    @property
    def client(self) -> Client: ...
    @property
    def namespace(self) -> str: ...
    @property
    def rate_limiter(self) -> RateLimiter: ...
    @property
    def codec(self) -> EnvelopeCodec: ...
    @property
    def schedules(self) -> Schedules: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation:
    """What came of revoking a task.

    Examples:
        >>> handle = price.with_options(queue="no-worker").enqueue(2, 50)
        >>> revoked = handle.revoke()
        >>> revoked.is_revoked, revoked.state_before
        (True, <TaskState.QUEUED: 'queued'>)
    """

    task_id: str
    queue: str
    #: Not if the task had ended.
    is_revoked: bool
    #: Its state before; `None` if it has no record.
    state_before: TaskState | None


class Control:
    """What an operator does with the queues and workers of an app; `app.control` is one.

    What is to last (revoked, paused, rates) is written to Redis first, so that a worker that starts later
    knows it too. Then it is broadcast to every worker, whose answers are waited for, up to `timeout_s`.

    Examples:
        >>> answers = app.control.pause("mails")  # of all workers, also of those that start later
        >>> answers = app.control.resume("mails")
    """

    def __init__(self, app: ControlledApp) -> None:
        self._app = app

    def workers(self) -> list[WorkerDescription]:
        """The processes of workers that are alive, by their heartbeats."""
        return live_workers(self._app.client, self._app.namespace)

    def ping(self, workers: Sequence[str] | None = None, *, timeout_s: float = TIMEOUT_S) -> Answers:
        """Ask workers, or all of them, whether they answer; each process of a pool does."""
        return self._ask("ping", workers, timeout_s)

    def inspect(self, workers: Sequence[str] | None = None, *, timeout_s: float = TIMEOUT_S) -> Answers:
        """The tasks that each worker runs (`active`), has read to run next (`reserved`), and may run later.

        Those are `scheduled`, of each of its queues the next 100: delayed ones, with the time at which they
        are due. No worker has them yet; of a process pool the parent answers with them, not its children.
        """
        answers = self._ask("inspect", workers, timeout_s)
        _add_scheduled(self, answers)
        return answers

    def shutdown(
        self, workers: Sequence[str] | None = None, *, hard: bool = False, timeout_s: float = TIMEOUT_S
    ) -> Answers:
        """Have workers, or all of them, end: after the tasks that run, or at once.

        What a worker has read and not begun is free for others; so is what a hard stop interrupts. A process
        whose task does not see that is killed after 30 s, as a failed attempt.
        """
        return self._ask("shutdown", workers, timeout_s, hard=hard)

    def pause(self, queue: str, *, timeout_s: float = TIMEOUT_S) -> Answers:
        """Begin no further task of a queue, in any worker, until `resume`; those that run go on."""
        scripts.change_queue(self._app.client, self._keys(queue), "paused", "1")
        return self._ask("look", None, timeout_s, queue=queue)

    def resume(self, queue: str, *, timeout_s: float = TIMEOUT_S) -> Answers:
        """Begin tasks of a paused queue again."""
        scripts.change_queue(self._app.client, self._keys(queue), "paused", "")
        return self._ask("look", None, timeout_s, queue=queue)

    def set_rate(self, task: str, rate: str | None, *, queue: str, timeout_s: float = TIMEOUT_S) -> Answers:
        """Change the rate of a task in a queue, for workers that start later too; `None`: no limit.

        Tasks that wait for the old rate come sooner or later in proportion; those of a task with a
        `rate_key` as soon as another one with the same key is read.
        """
        changed = None if rate is None else Rate.parse(rate)
        scripts.change_queue(self._app.client, self._keys(queue), f"rate:{task}", rate or "none")
        answers = self._ask("look", None, timeout_s, queue=queue)
        # When all workers know it: else one of them would spread the tasks by the old rate again.
        self._app.rate_limiter.change(Bucket(queue, task), changed)
        return answers

    def reset_rate(self, task: str, *, queue: str, timeout_s: float = TIMEOUT_S) -> Answers:
        """Limit a task by the rate that it was declared with again."""
        scripts.change_queue(self._app.client, self._keys(queue), f"rate:{task}", "")
        return self._ask("look", None, timeout_s, queue=queue)

    def revoke(
        self, task_id: str, *, queue: str, terminate: bool = False, canvas_task: str = ""
    ) -> Revocation:
        """Have a task not run, nor tried again; one that has ended stays as it is.

        Args:
            terminate: raise `TaskRevokedError` inside of the task if it runs. Else it runs to its end.
            canvas_task: of a canvas, the name of its last task, which may not be enqueued yet.
        """
        reason = "it was revoked"
        before = scripts.revoke(
            self._app.client,
            self._keys(queue),
            task_id,
            remember_ms=_REVOKED_MS,
            record_ttl_ms=_RECORD_MS,
            history=json.dumps({"reason": reason}),
            reason=reason,
            canvas_task=canvas_task,
        )
        if before.is_changed:
            facts = {"queue": queue, "task_id": task_id, "terminate": terminate}
            Broadcast(self._app.client, self._app.namespace).send(Request(command="revoke", facts=facts))
        return Revocation(
            task_id=task_id,
            queue=queue,
            is_revoked=before.is_changed,
            state_before=TaskState(before.state) if before.state else None,
        )

    def retry(self, name: str, *, queue: str) -> str:
        """Enqueue the task of a dead letter as a new one, once; returns the new task's id.

        Args:
            name: the id of the task that became the letter, or of the letter itself.

        Raises:
            DeadLetterError: there is no such letter, or it contains no task.
        """
        return retry_dead_letter(self._app.client, self._keys(queue), self._app.codec, name)

    def retry_all(
        self,
        *,
        queue: str,
        limit: int | None = None,
        per_second: float | None = None,
        dry_run: bool = False,
        **which: Unpack[LetterFilter],
    ) -> RetryReport:
        """Retry the dead letters of a queue that are there now, the oldest first, each once.

        Args:
            which: `error_type`, `task`, `since_ms`, `until_ms`; see `LetterFilter`.
        """
        client, keys, codec = self._app.client, self._keys(queue), self._app.codec
        how: dict[str, Any] = {"limit": limit, "per_second": per_second, "dry_run": dry_run}
        return retry_dead_letters(client, keys, codec, **how, **which)

    def letter(self, name: str, *, queue: str) -> TaskLetter | None:
        """The dead letter of a task, by its id or that of the task; kept until it is retried or purged."""
        return find_letter(self._app.client, self._keys(queue), name)

    def purge(
        self,
        names: Iterable[str] | None = None,
        *,
        queue: str,
        older_than_ms: int | None = None,
        until_ms: int | None = None,
        dry_run: bool = False,
    ) -> int:
        """Delete dead letters for good, by id, by age, or up to a time of the server's; returns how many."""
        how: dict[str, Any] = {"older_than_ms": older_than_ms, "until_ms": until_ms, "dry_run": dry_run}
        return purge_letters(self._app.client, self._keys(queue), names, **how)

    def purge_payloads(self, *, queue: str, older_than_ms: int, dry_run: bool = False) -> int:
        """Delete what is in the payload store and no task, result or dead letter needs; returns how many.

        Args:
            older_than_ms: an hour or more. Content is stored before the task or the result that refers to it
                is written: with too short an age, a purge in between deletes it.

        Raises:
            PayloadPurgeError: some could not be deleted; all others were.
        """
        check_non_negative_int("older_than_ms", older_than_ms)
        finder = UnneededPayloads(self._app.client, self._keys(queue), self._app.schedules.store)
        unneeded = finder.older_than(older_than_ms)
        failed: list[PayloadStoreError] = []
        for key in () if dry_run else unneeded:
            try:
                self._app.codec.payloads.remove(queue, key)
            except PayloadStoreError as error:
                failed.append(error)
        if failed:
            raise PayloadPurgeError(queue, len(unneeded) - len(failed), failed)
        return len(unneeded)

    def queue(self, name: str) -> QueueStats:
        """How many tasks of a queue are where."""
        return read_stats(self._app.client, self._keys(name))

    def tasks(self, queue: str, where: Where, *, limit: int = 50, after: str | None = None) -> TaskPage:
        """The tasks of a queue that are queued, in flight, waiting, delayed, dead letters, or have ended."""
        return TaskListing(self._app.client, self._keys(queue)).page(where, limit=limit, after=after)

    def _ask(self, command: str, workers: Sequence[str] | None, timeout_s: float, **facts: Any) -> Answers:
        # Before the request: one that comes later knows what is kept, and need not answer.
        expected = [
            one.name
            for one in self.workers()
            if (workers is None or one.name in workers or one.parent in workers)
            and (one.parent is None or command != "shutdown")
        ]
        expected += [name for name in workers or () if name not in expected]
        broadcast = Broadcast(self._app.client, self._app.namespace)
        request = Request(command=command, facts=facts, workers=None if workers is None else tuple(workers))
        broadcast.send(request)
        return broadcast.collect(request, expected, timeout_s)

    def _keys(self, queue: str) -> QueueKeys:
        return QueueKeys(self._app.namespace, queue)


def _add_scheduled(control: Control, answers: Answers) -> None:
    queues = {one.name: one.queues for one in control.workers() if one.parent is None}
    scheduled = {
        queue: [
            {"id": task.id, "name": task.name, "queue": queue, "due_ms": task.at_ms}
            for task in control.tasks(queue, "delayed", limit=_MOST_SCHEDULED).tasks
        ]
        for queue in {queue for name in answers for queue in queues.get(name, ())}
    }
    for name, answer in answers.items():
        if answer is not None:
            answer["scheduled"] = [task for queue in queues.get(name, ()) for task in scheduled[queue]]
