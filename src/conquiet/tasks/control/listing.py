"""TaskListing: the tasks of a queue by where they are, page by page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from conquiet.queue.connection import AS_BYTES, Client, as_text, run_command, visible_errors
from conquiet.queue.message import data_of
from conquiet.tasks.control.letters import read_letters
from conquiet.tasks.envelope import TaskEnvelope
from conquiet.tasks.keys import GROUP, PRIORITIES, WAITING, QueueKeys
from conquiet.tasks.record import TaskState

#: Where a task may be; "ended" is read from the last events of the queue.
Where = Literal["queued", "in_flight", "waiting", "delayed", "dead_lettered", "ended"]
PLACES: tuple[str, ...] = get_args(Where)
_ENDED = frozenset(state.value for state in TaskState if state.is_final)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTask:
    """One task of a page; `None` is what its place does not say."""

    #: Empty for an entry that is no task.
    id: str
    name: str
    #: The state of an ended one, else the place itself.
    state: str
    priority: int | None = None
    #: When it was enqueued, is due, or has ended, ms since 1970.
    at_ms: int | None = None
    #: The consumer that has read it.
    consumer: str | None = None
    #: Class and text of the error of a dead letter.
    error: str | None = None
    #: Of a dead letter, which `Control.retry` takes too.
    letter_id: str | None = None


@dataclass(frozen=True, slots=True)
class TaskPage:
    """Some tasks, and where the next page begins; `None`: there is none."""

    tasks: list[ListedTask] = field(default_factory=list)
    after: str | None = None


class TaskListing:
    """Reads the keys of one queue; never the whole server."""

    def __init__(self, client: Client, keys: QueueKeys) -> None:
        self._client = client
        self._keys = keys

    def page(self, where: Where, *, limit: int = 50, after: str | None = None) -> TaskPage:
        """Up to `limit` tasks; those that move between two pages may be missing, or come twice."""
        if where not in PLACES:
            raise ValueError(f"where must be one of {', '.join(PLACES)}, got {where!r}")
        found: Iterator[tuple[str, ListedTask]] = getattr(self, f"_{where}")(after, limit)
        tasks, position = [], None
        for position, task in found:
            tasks.append(task)
            if len(tasks) == limit:
                return TaskPage(tasks, position)
        return TaskPage(tasks)

    def _queued(self, after: str | None, limit: int) -> Iterator[tuple[str, ListedTask]]:
        """Those behind what the group has read, the highest priority first."""
        for priority, start in self._priorities(after):
            if start is None:
                groups = self._run("XINFO GROUPS", self._keys.streams[priority])
                start = as_text(groups[0]["last-delivered-id"]) if groups else "0-0"
            stream = self._keys.streams[priority]
            for entry_id, fields in self._run("XRANGE", stream, f"({start}", "+", "COUNT", limit):
                name = as_text(entry_id)
                yield f"{priority}:{name}", _listed(fields, "queued", priority=priority, at_ms=_ms_of(name))

    def _in_flight(self, after: str | None, limit: int) -> Iterator[tuple[str, ListedTask]]:
        """Those that are pending at a worker."""
        for priority, start in self._priorities(after):
            stream, pending = self._keys.streams[priority], []
            for consumer in self._run("XINFO CONSUMERS", stream, GROUP):
                name = as_text(consumer["name"])
                if name != WAITING and consumer["pending"]:
                    first = "-" if start is None else f"({start}"
                    command = ("XPENDING", stream, GROUP, first, "+", limit, name)
                    pending += self._run(*command, parse_detail=True)
            pending.sort(key=lambda one: [int(part) for part in as_text(one["message_id"]).split("-")])
            consumers = {as_text(one["message_id"]): as_text(one["consumer"]) for one in pending[:limit]}
            for entry_id, fields in self._entries(stream, list(consumers)):
                facts = {"priority": priority, "at_ms": _ms_of(entry_id), "consumer": consumers[entry_id]}
                yield f"{priority}:{entry_id}", _listed(fields, "in_flight", **facts)

    def _waiting(self, after: str | None, limit: int) -> Iterator[tuple[str, ListedTask]]:
        """Those that wait for their time, the next one due first."""
        for priority, start in self._priorities(after):
            stream, offset = self._keys.streams[priority], int(start or 0)
            command = ("ZRANGE", self._keys.waiting[priority], offset, offset + limit - 1, "WITHSCORES")
            due = dict(_scores(self._run(*command)))
            for number, (entry_id, fields) in enumerate(self._entries(stream, list(due)), start=offset + 1):
                facts = {"priority": priority, "at_ms": due[entry_id]}
                yield f"{priority}:{number}", _listed(fields, "waiting", **facts)

    def _delayed(self, after: str | None, limit: int) -> Iterator[tuple[str, ListedTask]]:
        """Those that are not in a stream yet, the next one due first."""
        offset = int(after or 0)
        delayed = _scores(self._run("ZRANGE", self._keys.delayed, offset, offset + limit - 1, "WITHSCORES"))
        if not delayed:
            return
        items = self._run("HMGET", self._keys.delayed_items, *(task_id for task_id, _ in delayed))
        for number, ((task_id, due_ms), item) in enumerate(
            zip(delayed, items, strict=True), start=offset + 1
        ):
            priority, _, data = (item or b"").partition(b":")
            listed = _listed([b"data", data], "delayed", at_ms=due_ms)
            yield str(number), replace(listed, id=task_id, priority=int(priority) if priority else None)

    def _dead_lettered(self, after: str | None, limit: int) -> Iterator[tuple[str, ListedTask]]:
        """The oldest first."""
        start = "-" if after is None else f"({after}"
        for letter in read_letters(self._client, self._keys, start, "+", page=limit):
            task = ListedTask(
                id=letter.task_id,
                name=letter.name,
                state="dead_lettered",
                priority=letter.priority,
                at_ms=_ms_of(letter.id),
                consumer=letter.worker,
                error=f"{letter.error_type}: {letter.error}",
                letter_id=letter.id,
            )
            yield letter.id, task

    def _ended(self, after: str | None, limit: int) -> Iterator[tuple[str, ListedTask]]:
        """The newest first; the queue keeps about its last 10,000 events."""
        entry, _, number = (after or "+:").partition(":")
        entries: list[Any] | None = None
        while entries is None or len(entries) > limit:
            entries = self._run("XREVRANGE", self._keys.events, entry, "-", "COUNT", limit + 1)
            # One entry has all tasks of one call: a page may end in the middle of it.
            for entry_id, fields in entries:
                name = as_text(entry_id)
                skipped = int(number) if name == entry and number else 0
                for index, event in enumerate(_events(fields)[skipped:], start=skipped + 1):
                    task_id, task_name, state = event
                    # Other events are of tasks that go on.
                    if state in _ENDED:
                        listed = ListedTask(id=task_id, name=task_name, state=state, at_ms=_ms_of(name))
                        yield f"{name}:{index}", listed
                entry = f"({name}"

    def _priorities(self, after: str | None) -> Iterator[tuple[int, str | None]]:
        """Those in use from the position on, each with where to begin."""
        first, _, start = (after or ":").partition(":")
        names = {as_text(name) for name in self._run("HKEYS", self._keys.meta)}
        for priority in reversed(PRIORITIES):
            if f"p{priority}" in names and (not first or priority <= int(first)):
                yield priority, start if first and priority == int(first) else None

    def _entries(self, stream: str, entry_ids: Sequence[str]) -> Iterator[tuple[str, Any]]:
        """The fields of entries, in one round trip."""
        pipeline = self._client.pipeline(transaction=False)
        for entry_id in entry_ids:
            pipeline.execute_command("XRANGE", stream, entry_id, entry_id, **AS_BYTES)
        with visible_errors("XRANGE", stream=stream, group=None):
            replies = pipeline.execute()
        for entry_id, entries in zip(entry_ids, replies, strict=True):
            yield entry_id, entries[0][1] if entries else []

    def _run(self, *command: Any, **options: Any) -> Any:
        return run_command(self._client, *command, stream=self._keys.prefix, group=None, **options)


def _listed(fields: Any, state: str, **facts: Any) -> ListedTask:
    try:
        envelope = TaskEnvelope.decode(data_of(fields))
    except ValueError:
        return ListedTask(id="", name="", state=state, **facts)
    return ListedTask(id=envelope.id, name=envelope.name, state=state, **facts)


def _events(fields: Any) -> list[tuple[str, str, str]]:
    try:
        return [(str(task_id), str(name), str(state)) for task_id, name, state in json.loads(data_of(fields))]
    except (ValueError, TypeError):
        return []


def _scores(reply: Any) -> list[tuple[str, int]]:
    pairs = (
        reply if reply and isinstance(reply[0], list | tuple) else zip(reply[::2], reply[1::2], strict=True)
    )
    return [(as_text(name), int(float(score))) for name, score in pairs]


def _ms_of(entry_id: str) -> int:
    return int(entry_id.partition("-")[0])
