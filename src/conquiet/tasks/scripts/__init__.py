"""The Lua scripts of the task layer, each behind one typed function; here those of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from conquiet.queue.connection import Client, as_text, visible_errors
from conquiet.queue.lua import Argument, LuaScript
from conquiet.tasks import clock
from conquiet.tasks.keys import GROUP, QueueKeys


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
