"""RedisResults: reads the records of tasks, and waits for their end without polling."""

from __future__ import annotations

from typing import Any, cast

from conquiet.queue.connection import AS_BYTES, AsyncClient, Client, as_text, run_command, visible_errors
from conquiet.tasks.keys import QueueKeys
from conquiet.tasks.record import TaskStatus


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
    """As `RedisResults`, for an event loop."""

    def __init__(self, client: AsyncClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def status(self, task_id: str, queue: str) -> TaskStatus | None:
        """As `RedisResults.status`."""
        keys = QueueKeys(self._namespace, queue)
        reply = await self._run("HGETALL", keys.record(task_id))
        return TaskStatus.of(task_id, queue, _flat(reply))

    async def events_position(self, queue: str) -> str:
        """As `RedisResults.events_position`."""
        keys = QueueKeys(self._namespace, queue)
        return _last_id(await self._run("XREVRANGE", keys.events, "+", "-", "COUNT", 1))

    async def wait_for_event(self, queue: str, position: str, wait_s: float) -> str:
        """As `RedisResults.wait_for_event`."""
        keys = QueueKeys(self._namespace, queue)
        return _position_after(await self._run(*_read_events(keys.events, position, wait_s)), position)

    async def _run(self, *command: Any) -> Any:
        with visible_errors(command[0], stream=self._namespace, group=None):
            return await cast(Any, self._client).execute_command(*command, **AS_BYTES)


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
