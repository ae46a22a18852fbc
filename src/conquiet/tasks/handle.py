"""TaskHandle: one enqueued task, as its caller sees it."""

from __future__ import annotations

import time
from asyncio import CancelledError, current_task, to_thread
from dataclasses import dataclass, field
from typing import Any, Protocol

from conquiet.tasks.control import Revocation
from conquiet.tasks.errors import ResultTimeoutError, TaskFailedError, UnknownTaskError
from conquiet.tasks.record import TaskState, TaskStatus
from conquiet.tasks.results import LONGEST_WAIT_S, AsyncRedisResults, RedisResults


class ResultReader(Protocol):
    """What a handle needs of its app."""

    @property
    def results(self) -> RedisResults: ...
    @property
    def async_results(self) -> AsyncRedisResults: ...
    def result_of(self, status: TaskStatus) -> Any: ...
    def revoke(
        self, task_id: str, queue: str | None, *, terminate: bool, canvas_task: str = ""
    ) -> Revocation: ...


@dataclass(frozen=True, slots=True)
class TaskHandle:
    """The id of a task and where it is; costs nothing to keep or to make.

    Examples:
        >>> handle = price.enqueue(3, 5)
        >>> handle.result(timeout_s=60), handle.status().state
        (15, <TaskState.SUCCEEDED: 'succeeded'>)
    """

    id: str
    queue: str
    name: str = ""
    #: Whether this call enqueued it; not if a unique task like it was there.
    is_new: bool = True
    #: Of a chain: the queues of all of its steps.
    queues: tuple[str, ...] = field(default=(), repr=False, compare=False)
    _app: ResultReader = field(repr=False, compare=False, kw_only=True)

    def status(self) -> TaskStatus | None:
        """State, history and result; `None` if no record is kept, or not any more."""
        return self._app.results.status(self.id, self.queue)

    def result(self, timeout_s: float | None = None) -> Any:
        """Wait for the end of the task, blocking on the server, and return what it returned.

        A task has its record as soon as it is enqueued; only the last step of a chain is waited for without.

        Raises:
            UnknownTaskError: it has no record: it keeps none, or not any more. Nothing will come.
            TaskFailedError: it became a dead letter, was revoked or has expired.
            ResultTimeoutError: it has not ended in time.
            PayloadError: its result was stored, and is not there, or is not what was stored.
        """
        ends_at = None if timeout_s is None else time.monotonic() + timeout_s
        position = self._app.results.events_position(self.queue)
        while True:
            status = self._known(self.status())
            if status is not None and status.state.is_final:
                return self._value(status)
            left_s = LONGEST_WAIT_S if ends_at is None else ends_at - time.monotonic()
            if left_s <= 0:
                state = None if status is None else status.state
                raise ResultTimeoutError(self.id, queue=self.queue, state=state, timeout_s=timeout_s or 0)
            wait_s = min(left_s, LONGEST_WAIT_S)
            position = self._app.results.wait_for_event(self.queue, position, wait_s)

    def revoke(self, *, terminate: bool = False) -> Revocation:
        """Have the task not run, nor tried again; one that has ended stays as it is, and the answer says so.

        Of a chain all steps that have not ended are revoked.

        Args:
            terminate: raise `TaskRevokedError` inside of the task if it runs. Else it runs to its end.
        """
        for queue in self.queues:
            if queue != self.queue:
                self._app.revoke(self.id, queue, terminate=terminate)
        canvas_task = self.name if self.queues else ""
        return self._app.revoke(self.id, self.queue, terminate=terminate, canvas_task=canvas_task)

    async def status_async(self) -> TaskStatus | None:
        """As `status`, for an event loop."""
        return await self._app.async_results.status(self.id, self.queue)

    async def result_async(self, timeout_s: float | None = None) -> Any:
        """As `result`, for an event loop."""
        ends_at = None if timeout_s is None else time.monotonic() + timeout_s
        results, before = self._app.async_results, cancellations()
        async with results.changes_of(self.id, self.queue) as changes:
            while True:
                status = self._known(await results.status(self.id, self.queue))
                # redis-py waits with asyncio.wait_for, which before Python 3.12 may swallow one.
                if cancellations() > before:
                    raise CancelledError
                if status is not None and status.state.is_final:
                    break
                left_s = LONGEST_WAIT_S if ends_at is None else ends_at - time.monotonic()
                if left_s <= 0:
                    state = None if status is None else status.state
                    raise ResultTimeoutError(self.id, queue=self.queue, state=state, timeout_s=timeout_s or 0)
                await changes.wait(min(left_s, LONGEST_WAIT_S))
        # A store may block.
        return self._value(status) if status.stored is None else await to_thread(self._value, status)

    def _known(self, status: TaskStatus | None) -> TaskStatus | None:
        if status is None and not self.queues:
            raise UnknownTaskError(self.id)
        return status

    def _value(self, status: TaskStatus) -> Any:
        if status.state is not TaskState.SUCCEEDED:
            raise TaskFailedError(self.id, state=status.state, error=status.error or "no error is known")
        return self._app.result_of(status)


def cancellations() -> int:
    """How often the running asyncio task was cancelled."""
    task = current_task()
    return 0 if task is None else task.cancelling()
