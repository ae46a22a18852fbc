"""GroupHandle: a group of tasks as its caller sees it; its results, in the order of its members."""

from __future__ import annotations

import time
from asyncio import CancelledError, to_thread
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from conquiet.queue.connection import run_command
from conquiet.tasks.app import TaskApp
from conquiet.tasks.errors import ResultTimeoutError, TaskFailedError, UnknownTaskError
from conquiet.tasks.handle import cancellations
from conquiet.tasks.keys import GROUP_SHARD, QueueKeys

_LONGEST_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """How far a group is."""

    total: int
    left: int
    failed: int


@dataclass(frozen=True, slots=True)
class MemberError:
    """Instead of the result of a member that failed."""

    error: str


@dataclass(frozen=True, slots=True)
class GroupHandle:
    """A group that was enqueued.

    Examples:
        >>> handle = group([price.call(1, 1), price.call(2, 2)]).enqueue()
        >>> handle.results(60)
        [1, 4]
    """

    id: str
    queue: str
    total: int
    #: Of the tasks whose results those of the members are, in their order; without, results are JSON.
    names: tuple[str, ...] = field(default=(), repr=False, compare=False)
    #: Those of all members.
    queues: tuple[str, ...] = field(default=(), repr=False, compare=False)
    _app: TaskApp = field(repr=False, compare=False, kw_only=True)

    def status(self) -> GroupStatus:
        """How many members have not ended, and how many failed.

        Raises:
            UnknownTaskError: there is no such group, or not any more.
        """
        keys = self._app.keys(self.queue)
        command = ("HMGET", keys.group(self.id), "total", "left", "failed")
        counts = run_command(self._app.client, *command, stream=keys.prefix, group=None)
        if None in counts:
            raise UnknownTaskError(self.id)
        return GroupStatus(*(int(count) for count in counts))

    def results(self, timeout_s: float | None = None, *, on_error: str = "fail") -> list[Any]:
        """Wait until all members have ended, and return what they returned, in the order of the members.

        Args:
            on_error: "fail" raises if a member failed, "pass" returns a `MemberError` in its place.

        Raises:
            TaskFailedError: a member failed.
            ResultTimeoutError: they have not ended in time.
            PayloadError: a result was stored, and is not there, or is not what was stored.
        """
        ends_at = None if timeout_s is None else time.monotonic() + timeout_s
        results = self._app.results
        position = results.events_position(self.queue)
        while (status := self.status()).left:
            left_s = _LONGEST_WAIT_S if ends_at is None else ends_at - time.monotonic()
            if left_s <= 0:
                raise self._timeout(status, timeout_s)
            position = results.wait_for_event(self.queue, position, min(left_s, _LONGEST_WAIT_S))
        return self._load(on_error)

    async def status_async(self) -> GroupStatus:
        """As `status`, for an event loop."""
        return await to_thread(self.status)

    async def results_async(self, timeout_s: float | None = None, *, on_error: str = "fail") -> list[Any]:
        """As `results`, for an event loop."""
        ends_at = None if timeout_s is None else time.monotonic() + timeout_s
        before = cancellations()
        async with self._app.async_results.changes_of(self.id, self.queue) as changes:
            while (status := await self.status_async()).left:
                # Before Python 3.12 a wait may swallow one.
                if cancellations() > before:
                    raise CancelledError
                left_s = _LONGEST_WAIT_S if ends_at is None else ends_at - time.monotonic()
                if left_s <= 0:
                    raise self._timeout(status, timeout_s)
                await changes.wait(min(left_s, _LONGEST_WAIT_S))
        return await to_thread(self._load, on_error)

    def _timeout(self, status: GroupStatus, timeout_s: float | None) -> ResultTimeoutError:
        state = f"{status.total - status.left} of {status.total} ended"
        return ResultTimeoutError(self.id, queue=self.queue, state=state, timeout_s=timeout_s or 0)

    def _load(self, on_error: str) -> list[Any]:
        found = list(load_results(self._app, self._app.keys(self.queue), self.id, self.total))
        for number, result in enumerate(found):
            if not isinstance(result, MemberError):
                found[number] = self._app.load_result(self.names[number] if self.names else "", result)
            elif on_error == "fail":
                text = f"member {number} failed: {result.error}"
                raise TaskFailedError(self.id, state="failed", error=text)
        return found

    def revoke(self, *, terminate: bool = False) -> None:
        """Have no member run that has not begun; those that have ended stay as they are.

        Args:
            terminate: raise `TaskRevokedError` inside of members that run. Else they run to their end.
        """
        for queue in self.queues or (self.queue,):
            self._app.revoke(self.id, queue, terminate=terminate)


def load_results(app: TaskApp, keys: QueueKeys, group_id: str, total: int) -> Iterator[Any]:
    """The results of a group's members in order, `MemberError` for those that failed; read shard by shard.

    Raises:
        PayloadError: one was stored, and is not there, or is not what was stored.
    """
    for shard in range((total + GROUP_SHARD - 1) // GROUP_SHARD):
        first = shard * GROUP_SHARD
        numbers = range(first, min(first + GROUP_SHARD, total))
        command = ("HMGET", keys.group_results(group_id, shard), *numbers)
        for value in run_command(app.client, *command, stream=keys.prefix, group=None):
            if value is None:
                yield MemberError("its result is not kept any more")
            elif value[:1] == b"1":
                yield app.codec.decode_result(value[1:])
            else:
                yield MemberError(value[1:].decode())
