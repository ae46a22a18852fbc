"""RedisResults: reads the records of tasks, and waits for their end without polling."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

from conquiet.queue.connection import AS_BYTES, AsyncClient, Client, as_text, run_command, visible_errors
from conquiet.queue.message import data_of
from conquiet.tasks.keys import QueueKeys
from conquiet.tasks.record import TaskStatus

#: Who waits looks again after this time, in case a connection was lost without a word.
LONGEST_WAIT_S = 5.0
#: Of one event loop: redis-py allows for 100 connections.
_MOST_CALLS = 50


class RedisResults:
    """Records in Redis; a worker writes them in the script that settles its task."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    def status(self, task_id: str, queue: str) -> TaskStatus | None:
        """What is known of a task; `None` if it has no record, or not any more."""
        keys = QueueKeys(self._namespace, queue)
        reply = run_command(self._client, "HGETALL", keys.record(task_id), stream=keys.prefix, group=None)
        return TaskStatus.of(task_id, queue, _flat(reply))

    def events_position(self, queue: str) -> str:
        """The last event of the queue: to wait for those behind it."""
        keys = QueueKeys(self._namespace, queue)
        reply = run_command(
            self._client, "XREVRANGE", keys.events, "+", "-", "COUNT", 1, stream=keys.events, group=None
        )
        return _last_id(reply)

    def wait_for_event(self, queue: str, position: str, wait_s: float) -> str:
        """Wait for an event behind `position`, for so long; returns the new position."""
        keys = QueueKeys(self._namespace, queue)
        command = _read_events(keys.events, position, wait_s)
        reply = run_command(self._client, *command, stream=keys.events, group=None)
        return _position_after(reply, position)


class AsyncRedisResults:
    """As `RedisResults`, for an event loop; any number of coroutines may use it at once."""

    def __init__(self, client: AsyncClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._calls = asyncio.Semaphore(_MOST_CALLS)
        #: By the names of queues.
        self._shared: dict[str, _SharedRead] = {}

    async def status(self, task_id: str, queue: str) -> TaskStatus | None:
        """As `RedisResults.status`."""
        keys = QueueKeys(self._namespace, queue)
        async with self._calls:
            reply = await self._run("HGETALL", keys.record(task_id))
        return TaskStatus.of(task_id, queue, _flat(reply))

    async def events_position(self, queue: str) -> str:
        """As `RedisResults.events_position`."""
        keys = QueueKeys(self._namespace, queue)
        async with self._calls:
            return _last_id(await self._run("XREVRANGE", keys.events, "+", "-", "COUNT", 1))

    async def wait_for_event(self, queue: str, position: str, wait_s: float) -> str:
        """As `RedisResults.wait_for_event`; each call has a connection of its own."""
        return _position_after(await self.read_events(queue, position, wait_s), position)

    async def read_events(self, queue: str, position: str, wait_s: float) -> Any:
        """What XREAD returns of the events of a queue."""
        return await self._run(*_read_events(QueueKeys(self._namespace, queue).events, position, wait_s))

    @asynccontextmanager
    async def changes_of(self, task_id: str, queue: str) -> AsyncIterator[StateChanges]:
        """The changes of a task's state from now on."""
        shared = self._shared.get(queue)
        if shared is None:
            shared = self._shared[queue] = _SharedRead(self, queue)
        changed = asyncio.Event()
        shared.waiting.setdefault(task_id, []).append(changed)
        try:
            await asyncio.shield(shared.has_begun)
            yield StateChanges(changed, shared)
        finally:
            shared.waiting[task_id].remove(changed)
            if not shared.waiting[task_id]:
                del shared.waiting[task_id]
            if (not shared.waiting or shared.error is not None) and self._shared.get(queue) is shared:
                shared.reader.cancel()
                del self._shared[queue]

    async def _run(self, *command: Any) -> Any:
        with visible_errors(command[0], stream=self._namespace, group=None):
            return await cast(Any, self._client).execute_command(*command, **AS_BYTES)


class _SharedRead:
    """Reads the events of a queue with one connection for all coroutines that wait, until none does."""

    def __init__(self, results: AsyncRedisResults, queue: str) -> None:
        self._results = results
        self._queue = queue
        #: By the ids of the tasks.
        self.waiting: dict[str, list[asyncio.Event]] = {}
        #: What has ended it.
        self.error: Exception | None = None
        loop = asyncio.get_running_loop()
        #: Done when no event from then on is missed.
        self.has_begun: asyncio.Future[None] = loop.create_future()
        self.reader = loop.create_task(self._read())

    async def _read(self) -> None:
        try:
            position = await self._results.events_position(self._queue)
            self.has_begun.set_result(None)
            while self.waiting:
                reply = await self._results.read_events(self._queue, position, LONGEST_WAIT_S)
                entries = read_entries(reply)
                for _, fields in entries:
                    self._wake(_changed_tasks(fields))
                position = entries[-1][0] if entries else position
        except Exception as error:  # noqa: BLE001 -- raised to each of those that wait
            self.error = error
            if not self.has_begun.done():
                self.has_begun.set_result(None)
            self._wake(None)

    def _wake(self, task_ids: Iterable[str] | None) -> None:
        for task_id in self.waiting if task_ids is None else task_ids:
            for changed in self.waiting.get(task_id, ()):
                changed.set()


class StateChanges:
    """Those of one task, for one coroutine."""

    def __init__(self, changed: asyncio.Event, shared: _SharedRead) -> None:
        self._changed = changed
        self._shared = shared

    async def wait(self, wait_s: float) -> None:
        """Wait for the next one, for so long.

        Raises:
            QueueError: Redis failed.
        """
        if self._shared.error is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), wait_s)
            self._changed.clear()
        if self._shared.error is not None:
            raise self._shared.error


def _changed_tasks(fields: Any) -> list[str] | None:
    """The ids of tasks in an event; `None` if it may be of any: it cannot be read, or a group has ended."""
    try:
        return [str(task_id) for task_id, *_ in json.loads(data_of(fields))] or None
    except (ValueError, TypeError):
        return None


def _read_events(stream: str, position: str, wait_s: float) -> tuple[Any, ...]:
    return ("XREAD", "COUNT", 100, "BLOCK", max(1, round(wait_s * 1000)), "STREAMS", stream, position)


def _flat(reply: Any) -> list[bytes]:
    if isinstance(reply, dict):
        return [part for pair in reply.items() for part in pair]
    return list(reply)


def _last_id(entries: Any) -> str:
    return entries[0][0].decode() if entries else "0-0"


def read_streams(reply: Any) -> list[tuple[str, list[tuple[str, Any]]]]:
    """What XREAD returned: each stream with its entries, each of these with its fields."""
    found = []
    for stream, entries in reply.items() if isinstance(reply, dict) else reply or ():
        # Of redis-py's own parser for RESP3, one level deeper.
        while entries and isinstance(entries[0], list) and entries[0] and isinstance(entries[0][0], list):
            entries = entries[0]
        found.append((as_text(stream), [(as_text(entry_id), fields) for entry_id, fields in entries]))
    return found


def read_entries(reply: Any) -> list[tuple[str, Any]]:
    """The entries of one stream that XREAD returned, each with its fields."""
    return [entry for _, entries in read_streams(reply) for entry in entries]


def _position_after(reply: Any, position: str) -> str:
    entries = read_entries(reply)
    return entries[-1][0] if entries else position
