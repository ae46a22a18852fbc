"""The Lua scripts that enqueue tasks, each behind one typed function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from conquiet.queue.connection import REDIS_ERRORS, Client, as_text, queue_error, visible_errors
from conquiet.queue.lua import Argument, Call
from conquiet.tasks import clock
from conquiet.tasks.keys import QueueKeys
from conquiet.tasks.scripts import script

#: Tasks of one call: the server does nothing else while it runs.
_NEW_IN_A_CALL = 100


class Enqueued(NamedTuple):
    """The id of a task; not new if it, or a unique one like it, was enqueued before."""

    id: str
    is_new: bool
    #: Whether the arguments that were stored for it are no task's.
    leaves_payload: bool = False


class PlainReply(IntEnum):
    """What became of a plain task; all but the first: nothing was done, it takes `enqueue_new`."""

    ENQUEUED = 1
    HAS_LISTENERS = 0
    #: The priority is not in use yet, or the server has lost its data.
    IS_FIRST = -1


# Not frozen, as one is made for every task: that would triple what it costs.
@dataclass(slots=True, kw_only=True)
class NewTask:
    """What is written to enqueue one task."""

    id: str
    name: str
    data: bytes
    priority: int
    delay_ms: int = 0
    #: 0: it has no record.
    record_ttl_ms: int = 0
    unique_for_ms: int = 0
    unique_digest: str = ""
    #: What its history says of its first state, as JSON.
    history: str = "{}"
    #: The key of its arguments in the payload store, or empty.
    stored_key: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether it is enqueued now, whatever else is there."""
        return not self.delay_ms and not self.unique_for_ms


def enqueue(client: Client, keys: QueueKeys, task: NewTask) -> Enqueued:
    """Enqueue one task."""
    with visible_errors("enqueue", stream=keys.prefix, group=None):
        return _enqueued(script("enqueue").run(client, *enqueue_call(keys, task)))


def enqueue_new(client: Client, keys: QueueKeys, *tasks: NewTask) -> None:
    """Enqueue plain tasks of one queue whose ids are new, in one round trip."""
    with visible_errors("enqueue", stream=keys.prefix, group=None):
        if len(tasks) <= _NEW_IN_A_CALL:
            script("enqueue_new").run(client, *_enqueue_new_call(keys, tasks))
            return
        calls = [
            _enqueue_new_call(keys, tasks[start : start + _NEW_IN_A_CALL])
            for start in range(0, len(tasks), _NEW_IN_A_CALL)
        ]
        for reply in script("enqueue_new").run_all(client, calls):
            if isinstance(reply, Exception):
                raise reply


def enqueue_one(
    client: Client,
    keys: QueueKeys,
    task_id: str,
    data: bytes,
    *,
    name: str,
    priority: int,
    record_ttl_ms: int,
) -> PlainReply:
    """Enqueue a plain task whose id is new, where nothing else is to be done."""
    tail = (
        *(3, keys.meta.encode(), keys.streams[priority].encode(), keys.record(task_id).encode()),
        *(f"p{priority}", data, record_ttl_ms, name),
    )
    # Without the context manager of the others, which would take as long as the rest of this function.
    try:
        return PlainReply(script("enqueue_one").run_encoded(client, tail))
    except REDIS_ERRORS as error:
        raise queue_error("enqueue", error, stream=keys.prefix, group=None) from error


def enqueue_all(client: Client, tasks: Sequence[tuple[QueueKeys, NewTask]]) -> list[Enqueued | Exception]:
    """Enqueue many in one round trip; an error for each that was refused."""
    where = tasks[0][0].prefix if tasks else ""
    with visible_errors("enqueue", stream=where, group=None):
        replies = script("enqueue").run_all(client, [enqueue_call(*task) for task in tasks])
    return [reply if isinstance(reply, Exception) else _enqueued(reply) for reply in replies]


def _enqueue_new_call(keys: QueueKeys, tasks: Sequence[NewTask]) -> Call:
    used: list[str] = [keys.meta, keys.feed]
    arguments: list[Argument] = [clock.for_scripts()]
    for task in tasks:
        used += (keys.streams[task.priority], keys.record(task.id))
        arguments += (task.priority, task.data, task.record_ttl_ms, task.id, task.name)
    return used, arguments


def enqueue_call(keys: QueueKeys, task: NewTask) -> Call:
    """The keys and arguments of enqueue.lua."""
    used = [
        keys.meta,
        keys.streams[task.priority],
        keys.record(task.id),
        keys.delayed,
        keys.delayed_items,
        keys.unique(task.unique_digest),
        keys.feed,
    ]
    arguments = (
        clock.for_scripts(),
        task.id,
        task.data,
        task.priority,
        task.delay_ms,
        task.record_ttl_ms,
        task.unique_for_ms,
        task.name,
        task.history,
        task.stored_key,
    )
    return used, arguments


def _enqueued(reply: Any) -> Enqueued:
    task_id, is_new, leaves_payload = reply
    return Enqueued(as_text(task_id), bool(is_new), bool(leaves_payload))
