"""TaskEvents: the events of the tasks of an app, in all processes."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Protocol, Self, cast

import redis
import redis.asyncio

from conquiet.queue.connection import AS_BYTES, AsyncClient, Client, as_text, run_command, visible_errors
from conquiet.queue.message import data_of
from conquiet.tasks.keys import FEED_LENGTH, QueueKeys
from conquiet.tasks.results import read_streams
from conquiet.tasks.scripts.control import listen

_log = logging.getLogger(__name__)

#: Workers write events for this time after the last announcement of a listener.
_TTL_MS = 30_000
#: It is made again, and for queues that are new, after this time.
_ANNOUNCE_EVERY_S = 1.0
#: Where one call cannot wait for several queues: on a cluster.
_PAUSE_S = 0.05
#: Events of one read. As many may mean that the feed was trimmed before it was read.
_COUNT = 1_000
#: As errors name them.
_FEEDS = "the feeds of events"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEvent:
    """Something that happened to a task.

    Examples:
        >>> with app.events(idle_s=1) as events:
        ...     handle = price.enqueue(2, 50)
        ...     kinds = [event.kind for event in events if event.id == handle.id]
        >>> kinds[-1]
        'succeeded'
    """

    #: A state ("queued", "running", "retried", "failed", "dead_lettered", "succeeded", "revoked", "expired"),
    #: "progress", or "soft_limit".
    kind: str
    id: str
    name: str
    queue: str
    at: datetime
    #: As of a step in `TaskStatus.history`: `worker`, `attempt`, `error`; of progress `fraction` and `text`.
    facts: Mapping[str, Any] = field(default_factory=dict)


class ListenedApp(Protocol):
    """What a listener needs of an app."""

    @property
    def client(self) -> Client: ...
    @property
    def async_client(self) -> AsyncClient: ...
    def known_queues(self) -> list[str]: ...
    def keys(self, queue: str) -> QueueKeys: ...


class _Feeds:
    """The feeds of the queues that are listened to, and up to where each was read."""

    def __init__(self, app: ListenedApp, queues: Sequence[str] | None) -> None:
        self._app = app
        self._queues = queues
        #: By the key of the feed.
        self.positions: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._next_announcement = 0.0

    @property
    def must_announce(self) -> bool:
        """Whether it is time to have events written for longer."""
        return time.monotonic() >= self._next_announcement

    def announce(self) -> None:
        """Have workers and callers write events of all queues, new ones included."""
        for queue in self._app.known_queues() if self._queues is None else self._queues:
            keys = self._app.keys(queue)
            last_id = listen(self._app.client, keys, _TTL_MS)
            self._names[keys.feed] = queue
            self.positions.setdefault(keys.feed, last_id)
        self._next_announcement = time.monotonic() + _ANNOUNCE_EVERY_S

    def commands(self, wait_s: float, *, is_single: bool) -> list[tuple[Any, ...]]:
        """What reads all of them: one call that waits, or one for each queue."""
        block = ("BLOCK", max(1, round(wait_s * 1000)))
        if len(self.positions) == 1 or (is_single and self.positions):
            return [("XREAD", "COUNT", _COUNT, *block, "STREAMS", *self.positions, *self.positions.values())]
        return [("XREAD", "COUNT", _COUNT, "STREAMS", *place) for place in self.positions.items()]

    def take(self, reply: Any) -> list[TaskEvent]:
        """The events that a call has read; the next one reads on behind them."""
        events = []
        for feed, entries in read_streams(reply):
            for entry_id, fields in entries:
                self.positions[feed] = entry_id
                event = _event(self._names[feed], fields)
                if event is not None:
                    events.append(event)
        return events

    def full(self, reply: Any) -> list[tuple[str, str]]:
        """Feeds of which a call has read as much as it could, each with the first entry that it read."""
        return [(feed, entries[0][0]) for feed, entries in read_streams(reply) if len(entries) == _COUNT]

    def report_loss(self, feed: str, first_read: str, length: int, oldest: Any) -> None:
        """Log it if the feed was trimmed up to what was read."""
        if length >= FEED_LENGTH and oldest and _number(as_text(oldest[0][0])) >= _number(first_read):
            text = "events of queue %r come faster than they are read: some are lost"
            _log.warning(text, self._names[feed])


class TaskEvents:
    """The events of an app from now on, for one thread; ends with `close()`, or its `with` block.

    Best effort: what happens while nobody listens is not written, and a listener that is much slower than the
    tasks misses some, with a warning in its log. A `QueueError` ends no listener: iterate on, and it goes on
    from where it was.

    Examples:
        >>> with app.events(["default"], idle_s=1) as events:
        ...     handle = price.enqueue(2, 50)
        ...     last = [event for event in events if event.id == handle.id][-1]
        >>> last.name.endswith("price"), last.kind
        (True, 'succeeded')
    """

    def __init__(
        self, app: ListenedApp, queues: Sequence[str] | None = None, idle_s: float | None = None
    ) -> None:
        self._app = app
        self._feeds = _Feeds(app, queues)
        self._idle_s = idle_s
        self._read: deque[TaskEvent] = deque()
        self._is_closed = False
        self._feeds.announce()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> TaskEvent:
        ends_at = None if self._idle_s is None else time.monotonic() + self._idle_s
        while not self._read and not self._is_closed:
            left_s = _ANNOUNCE_EVERY_S if ends_at is None else ends_at - time.monotonic()
            if left_s <= 0:
                break
            self._fill(min(left_s, _ANNOUNCE_EVERY_S))
        if not self._read:
            raise StopIteration
        return self._read.popleft()

    def close(self) -> None:
        """Listen no more; what was read is still returned. Callable from any thread."""
        self._is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _fill(self, wait_s: float) -> None:
        if self._feeds.must_announce:
            self._feeds.announce()
        commands = self._feeds.commands(wait_s, is_single=isinstance(self._app.client, redis.Redis))
        for command in commands:
            reply = self._run(*command)
            for feed, first_read in self._feeds.full(reply):
                oldest = self._run("XRANGE", feed, "-", "+", "COUNT", 1)
                self._feeds.report_loss(feed, first_read, self._run("XLEN", feed), oldest)
            self._read += self._feeds.take(reply)
        if not self._read and not _waits(commands):
            time.sleep(min(wait_s, _PAUSE_S))

    def _run(self, *command: Any) -> Any:
        return run_command(self._app.client, *command, stream=_FEEDS, group=None)


class AsyncTaskEvents:
    """As `TaskEvents`, for an event loop: `async with app.events_async() as events`, then `async for`.

    It listens from the beginning of the block on, or from the first event that is asked for.

    Examples:
        >>> import asyncio
        >>> async def follow():
        ...     async with app.events_async(["default"], idle_s=1) as events:
        ...         handle = price.enqueue(2, 50)
        ...         return [event.kind async for event in events if event.id == handle.id]
        >>> asyncio.run(follow())[-1]
        'succeeded'
    """

    def __init__(
        self, app: ListenedApp, queues: Sequence[str] | None = None, idle_s: float | None = None
    ) -> None:
        self._app = app
        self._feeds = _Feeds(app, queues)
        self._idle_s = idle_s
        self._read: deque[TaskEvent] = deque()
        self._is_closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TaskEvent:
        ends_at = None if self._idle_s is None else time.monotonic() + self._idle_s
        while not self._read and not self._is_closed:
            left_s = _ANNOUNCE_EVERY_S if ends_at is None else ends_at - time.monotonic()
            if left_s <= 0:
                break
            await self._fill(min(left_s, _ANNOUNCE_EVERY_S))
        if not self._read:
            raise StopAsyncIteration
        return self._read.popleft()

    def close(self) -> None:
        """As `TaskEvents.close`."""
        self._is_closed = True

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._feeds.announce)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _fill(self, wait_s: float) -> None:
        if self._feeds.must_announce:
            await asyncio.to_thread(self._feeds.announce)
        client = self._app.async_client
        commands = self._feeds.commands(wait_s, is_single=isinstance(client, redis.asyncio.Redis))
        for command in commands:
            reply = await self._run(*command)
            for feed, first_read in self._feeds.full(reply):
                oldest = await self._run("XRANGE", feed, "-", "+", "COUNT", 1)
                self._feeds.report_loss(feed, first_read, await self._run("XLEN", feed), oldest)
            self._read += self._feeds.take(reply)
        if not self._read and not _waits(commands):
            await asyncio.sleep(min(wait_s, _PAUSE_S))

    async def _run(self, *command: Any) -> Any:
        with visible_errors(command[0], stream=_FEEDS, group=None):
            return await cast(Any, self._app.async_client).execute_command(*command, **AS_BYTES)


def _waits(commands: Sequence[tuple[Any, ...]]) -> bool:
    return bool(commands) and "BLOCK" in commands[0]


def _number(entry_id: str) -> tuple[int, int]:
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds), int(number)


def _event(queue: str, fields: Any) -> TaskEvent | None:
    """`None` for what another version wrote, and this one cannot read."""
    try:
        task_id, name, kind, at_ms, facts = json.loads(data_of(fields))[:5]
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (ValueError, TypeError):
        return None
    return TaskEvent(kind=str(kind), id=str(task_id), name=str(name), queue=queue, at=at, facts=facts)
