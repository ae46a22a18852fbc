"""The Lua scripts of groups and of what follows on tasks, each behind one typed function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from conquiet.queue.connection import Client, as_text, visible_errors
from conquiet.tasks import clock
from conquiet.tasks.keys import GROUP_SHARD, QueueKeys
from conquiet.tasks.scripts import script


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
