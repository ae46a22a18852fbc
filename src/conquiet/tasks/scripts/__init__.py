"""The Lua scripts of the task layer, each behind one typed function that gives it its KEYS and ARGV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from conquiet.queue.connection import REDIS_ERRORS, Client, as_text, queue_error, visible_errors
from conquiet.queue.lua import Argument, Call, LuaScript
from conquiet.tasks import clock
from conquiet.tasks.keys import GROUP, GROUP_SHARD, QueueKeys


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


class Change(NamedTuple):
    """What is done with one entry; see settle_and_read.lua."""

    what: str
    priority: int
    entry_id: str
    delivery_count: int
    first: str | int | bytes = ""
    second: str | int = ""
    task_id: str = ""
    #: What is to be done for its canvas after it, as JSON.
    follow_up: str = ""
    #: 0: the task has no record.
    record_ttl_ms: int = 0
    record: Sequence[Argument] = ()


class Taken(NamedTuple):
    """One entry that was read."""

    priority: int
    entry_id: str
    fields: Sequence[bytes]
    delivery_count: int
    #: It waited, and is counted when it begins; a new one was counted as it was read.
    has_waited: bool


class Read(NamedTuple):
    """What one call settled and read."""

    #: Numbers of the changes that were refused.
    refused: Sequence[int]
    entries: Sequence[Taken]
    next_due_ms: int | None
    is_paused: bool
    #: How many there were by control: tasks revoked, rates changed.
    changes: int


class Freed(NamedTuple):
    """One entry of a dead consumer that waits for another worker now."""

    consumer: str
    priority: int
    entry_id: str
    delivery_count: int


#: Tasks of one call: the server does nothing else while it runs.
_NEW_IN_A_CALL = 100


#: Scripts that enqueue a task by its id.
_ENQUEUING = ("enqueue", "enqueue_scheduled", "beat_claim")


@cache
def script(name: str) -> LuaScript:
    """The script `name`.lua behind what it needs, read once."""
    if name == "enqueue_one":
        return LuaScript(files(__name__).joinpath(f"{name}.lua").read_bytes())
    parts = ["adding", "ground", name]
    if name in _ENQUEUING:
        parts.insert(2, "enqueue_task")
    elif name == "enqueue_new":
        parts.remove("ground")
    folder = files(__name__)
    return LuaScript(b"".join(folder.joinpath(f"{part}.lua").read_bytes() for part in parts))


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


def settle_and_read(
    client: Client,
    keys: QueueKeys,
    consumer: str,
    changes: Sequence[Change],
    *,
    count: int,
    max_bytes: int,
    event: str = "",
) -> Read:
    """Settle tasks and read others, in one round trip."""
    records: list[str] = []
    arguments: list[Argument] = [clock.for_scripts(), consumer, count, max_bytes, event]
    for change in changes:
        number = 0
        if change.record:
            records.append(keys.record(change.task_id))
            number = len(records)
        arguments += change[:8]
        arguments += (number, change.record_ttl_ms, len(change.record), *change.record)
    used = [keys.meta, keys.dead_letters, keys.events, keys.delayed, keys.delayed_items]
    used += [*keys.streams, *keys.waiting, keys.follow_ups, *records, keys.feed]
    with visible_errors("settle and read", stream=keys.prefix, group=GROUP):
        reply = script("settle_and_read").run(client, used, arguments)
    refused, entries, next_due_ms, is_paused, changes_seen = reply
    return Read(
        refused,
        [
            Taken(priority, entry_id.decode(), fields, number, bool(has_waited))
            for priority, entry_id, fields, number, has_waited in entries
        ],
        None if next_due_ms < 0 else int(next_due_ms),
        bool(is_paused),
        changes_seen,
    )


def heartbeat(client: Client, keys: QueueKeys, consumers: Sequence[str], ttl_ms: int) -> int:
    """Say that consumers are alive for so long; 0: they have left. Returns how many have a heartbeat."""
    with visible_errors("heartbeat", stream=keys.prefix, group=GROUP):
        return int(
            script("heartbeat").run(client, [keys.heartbeats], (clock.for_scripts(), ttl_ms, *consumers))
        )


#: How much one call takes over; a caller that gets as many asks again.
TAKE_OVER_PAGE = 100


def take_over(
    client: Client,
    keys: QueueKeys,
    *,
    most: int = TAKE_OVER_PAGE,
    dead: Sequence[str] = (),
    is_begun: bool = True,
) -> list[Freed]:
    """Free what is pending at dead consumers, up to `most` entries; there are more if it returns as many.

    Args:
        dead: consumers that the caller knows to be dead.
        is_begun: whether they may have begun what they had; if not, their deliveries are no attempts.
    """
    used = [keys.meta, keys.heartbeats, *keys.streams, *keys.waiting]
    with visible_errors("take over", stream=keys.prefix, group=GROUP):
        reply = script("take_over").run(
            client, used, (clock.for_scripts(), most, 0 if is_begun else 1, *dead)
        )
    return [Freed(as_text(name), priority, as_text(entry), count) for name, priority, entry, count in reply]


def free_unbegun(client: Client, keys: QueueKeys, dead: Sequence[str]) -> None:
    """Free all that is pending at consumers that are known to be dead, and that they have not begun."""
    page = TAKE_OVER_PAGE
    while len(take_over(client, keys, most=page, dead=dead, is_begun=False)) == page:
        pass


def mark_running(
    client: Client, keys: QueueKeys, task_id: str, record: Mapping[str, Argument], ttl_ms: int
) -> bool:
    """Write into a task's record that it runs, or how far it is, unless it has ended."""
    fields = [argument for pair in record.items() for argument in pair]
    used = [keys.record(task_id), keys.meta, keys.feed]
    with visible_errors("mark running", stream=keys.prefix, group=GROUP):
        return bool(script("mark_running").run(client, used, (clock.for_scripts(), task_id, ttl_ms, *fields)))


@dataclass(frozen=True, slots=True, kw_only=True)
class NewGroup:
    """What is written of a group of tasks before its members are enqueued."""

    id: str
    members: int
    on_error: str
    ttl_ms: int
    #: The task that follows: its id is empty if there is none.
    next_id: str = ""
    next_name: str = ""
    next_priority: int = 0
    next_data: bytes = b""
    next_canvas: str = ""
    #: How long it waits after the last member.
    next_delay_ms: int = 0
    #: When it is due, whenever that ends; 0: no such time.
    next_due_ms: int = 0


class Counted(NamedTuple):
    """A group after one of its members has ended."""

    left: int
    failed: int
    #: What is to be done after the task behind the group, which has failed with it; or empty.
    follow_up: str


def create_group(client: Client, keys: QueueKeys, group: NewGroup) -> bool:
    """Create the record of a group; `False` if it is there."""
    arguments = (
        group.ttl_ms,
        group.members,
        group.on_error,
        group.next_id,
        group.next_priority,
        group.next_data,
        group.next_name,
        group.next_canvas,
        group.next_delay_ms,
        group.next_due_ms,
    )
    with visible_errors("create group", stream=keys.prefix, group=None):
        return bool(script("create_group").run(client, [keys.group(group.id)], arguments))


def count_member(
    client: Client,
    keys: QueueKeys,
    group_id: str,
    next_id: str,
    *,
    member: int,
    is_success: bool,
    result: bytes | str,
    ttl_ms: int,
) -> Counted | None:
    """Count a member that has ended, once; `None` without such a group."""
    shard = keys.group_results(group_id, member // GROUP_SHARD)
    used = [keys.group(group_id), shard, keys.meta, keys.events, keys.record(next_id), *keys.streams]
    used += [keys.follow_ups, keys.feed, keys.delayed, keys.delayed_items, keys.revoked]
    arguments = (clock.for_scripts(), ttl_ms, member, int(is_success), result, GROUP_SHARD)
    with visible_errors("count member", stream=keys.prefix, group=None):
        reply = script("count_member").run(client, used, arguments)
    return None if reply is None else Counted(int(reply[0]), int(reply[1]), as_text(reply[2]))


def fail_task(
    client: Client, keys: QueueKeys, task_id: str, name: str, *, error: str, state: str, ttl_ms: int
) -> bool:
    """Write that a task which was never enqueued has failed; `False` if it has a record."""
    used = [keys.record(task_id), keys.events, keys.meta, keys.feed]
    with visible_errors("fail task", stream=keys.prefix, group=None):
        return bool(
            script("fail_task").run(client, used, (clock.for_scripts(), ttl_ms, task_id, name, error, state))
        )


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
