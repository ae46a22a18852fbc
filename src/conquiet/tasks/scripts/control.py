"""The scripts by which tasks are limited, revoked and controlled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from conquiet.queue.connection import Client, as_text, visible_errors
from conquiet.tasks import clock
from conquiet.tasks.keys import GROUP, QueueKeys
from conquiet.tasks.scripts import script
from conquiet.tasks.scripts.enqueue import Enqueued, NewTask


class Revoked(NamedTuple):
    """What `revoke` found, and whether it changed anything."""

    #: Empty if the task has no record.
    state: str
    is_changed: bool


class Tokens(NamedTuple):
    """How many come in which time, for a task that cannot wait for `within_ms`."""

    most: int
    period_ms: int
    within_ms: int | None = None


def take_rate(
    client: Client, keys: QueueKeys, bucket: str, task: str, tokens: Tokens, *, now: str = ""
) -> int:
    """Take a token of a bucket: returns after how many ms the task may begin."""
    used = [keys.rate(bucket), keys.reserved(bucket), *keys.waiting]
    with visible_errors("take rate", stream=keys.prefix, group=GROUP):
        within: int | str = "" if tokens.within_ms is None else tokens.within_ms
        arguments = (now or clock.for_scripts(), task, tokens.most, tokens.period_ms, within)
        return int(script("take_rate").run(client, used, arguments))


def revoke(
    client: Client,
    keys: QueueKeys,
    task_id: str,
    *,
    remember_ms: int,
    record_ttl_ms: int,
    history: str,
    reason: str,
    canvas_task: str = "",
) -> Revoked:
    """Revoke a task that has not ended, or a canvas by the id of its last task, with the name of that."""
    used = [keys.meta, keys.record(task_id), keys.delayed, keys.delayed_items, keys.revoked, keys.events]
    used += [keys.feed, *keys.waiting]
    arguments = (clock.for_scripts(), task_id, remember_ms, record_ttl_ms, history, reason, canvas_task)
    with visible_errors("revoke", stream=keys.prefix, group=None):
        state, is_changed = script("revoke").run(client, used, arguments)
    return Revoked(as_text(state), bool(is_changed))


def revoked(client: Client, keys: QueueKeys, task_ids: Sequence[str]) -> tuple[bool, set[str]]:
    """Whether any task of the queue is revoked, and which of the given."""
    with visible_errors("read revoked tasks", stream=keys.prefix, group=None):
        total, among = script("revoked").run(client, [keys.revoked], (clock.for_scripts(), *task_ids))
    return bool(total), {as_text(task_id) for task_id in among}


def broadcast(client: Client, stream: str, data: str, *, length: int, keep_ms: int) -> str:
    """Add a request to all workers, or an answer to one."""
    with visible_errors("broadcast", stream=stream, group=None):
        return as_text(script("broadcast").run(client, [stream], (data, length, keep_ms)))


def change_queue(client: Client, keys: QueueKeys, field: str, value: str) -> str | None:
    """Write what control changes into a queue's meta; returns what was there."""
    with visible_errors("change queue", stream=keys.meta, group=None):
        before = script("change_queue").run(client, [keys.meta], (field, value))
    return None if before is None else as_text(before)


def register_worker(client: Client, workers: str, description: str, ttl_ms: int) -> None:
    """Say that a worker is alive for so long; 0: it has left."""
    with visible_errors("register worker", stream=workers, group=None):
        script("heartbeat").run(client, [workers], (clock.for_scripts(), ttl_ms, description))


def live_workers(client: Client, workers: str, *, forgets_ended: bool) -> list[tuple[str, int]]:
    """The descriptions of workers that are alive, and for how many ms they count as such."""
    arguments = (clock.for_scripts(), "1" if forgets_ended else "")
    with visible_errors("read workers", stream=workers, group=None):
        reply = script("live_workers").run(client, [workers], arguments)
    return [(as_text(one), int(left_ms)) for one, left_ms in zip(reply[::2], reply[1::2], strict=True)]


def queue_stats(client: Client, keys: QueueKeys) -> list[Any]:
    """How many tasks of a queue are where; as the script returns it."""
    used = [keys.meta, keys.dead_letters, keys.delayed, keys.heartbeats, *keys.streams, *keys.waiting]
    with visible_errors("read queue", stream=keys.prefix, group=GROUP):
        return list(script("queue_stats").run(client, used, (clock.for_scripts(),)))


def retry_dead_letter(
    client: Client, keys: QueueKeys, letter_id: str, old_id: str, task: NewTask
) -> Enqueued:
    """Enqueue the task of a dead letter as a new one; an empty id if the letter is not there any more."""
    used = [
        keys.meta,
        keys.dead_letters,
        keys.streams[task.priority],
        keys.record(task.id),
        keys.record(old_id),
        keys.feed,
    ]
    facts = (task.id, task.data, task.priority, task.record_ttl_ms, task.name, task.history)
    with visible_errors("retry dead letter", stream=keys.prefix, group=None):
        new_id, is_new = script("retry_dead_letter").run(
            client, used, (clock.for_scripts(), letter_id, *facts)
        )
    return Enqueued(as_text(new_id), bool(is_new))


def listen(client: Client, keys: QueueKeys, ttl_ms: int) -> str:
    """Have events written for so long; returns the position behind which everything is new."""
    with visible_errors("listen", stream=keys.feed, group=None):
        return as_text(script("listen").run(client, [keys.meta, keys.feed], (clock.for_scripts(), ttl_ms)))


def publish_event(client: Client, keys: QueueKeys, task_id: str, name: str, *, kind: str, facts: str) -> bool:
    """Publish an event that is no change of state; `False` if nobody listens."""
    with visible_errors("publish event", stream=keys.feed, group=None):
        return bool(
            script("publish_event").run(
                client, [keys.meta, keys.feed], (clock.for_scripts(), task_id, name, kind, facts)
            )
        )
