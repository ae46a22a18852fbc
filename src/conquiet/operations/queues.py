"""The doctor's view of a queue of tasks: does somebody read it, and does everything in it get on?"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError

from conquiet.errors import QueueError
from conquiet.operations.findings import Finding, Level, loss_finding
from conquiet.operations.rates import Sample
from conquiet.queue import Client, ConsumerBacklog
from conquiet.queue.backlog import as_mapping
from conquiet.queue.connection import as_text, run_command
from conquiet.queue.losses import Loss, losses_of

if TYPE_CHECKING:
    from conquiet.tasks.keys import QueueKeys

#: What a worker does with its next heartbeat, or its next read, is late after this time.
_LATE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """One queue of tasks."""

    name: str
    is_paused: bool = False
    queued: int = 0
    #: Running, or reserved by a worker.
    in_flight: int = 0
    #: For their retry, their rate, or another worker.
    waiting: int = 0
    #: Not in a stream yet; of these the time of `overdue` has come, of the oldest of them so long ago.
    delayed: int = 0
    overdue: int = 0
    overdue_ms: int = 0
    dead_letters: int = 0
    #: Consumers that are alive, by their heartbeats.
    consumers: int = 0
    #: Consumers that have tasks, and no heartbeat.
    dead_consumers: tuple[ConsumerBacklog, ...] = ()
    #: Tasks of canvases that ended over a minute ago, and what is to follow was not done; up to about 100.
    left_follow_ups: int = 0
    losses: tuple[Loss, ...] = ()

    @property
    def unfinished(self) -> int:
        """All tasks that have not ended."""
        return self.queued + self.in_flight + self.waiting + self.delayed


def queue_names(client: Client, namespace: str = "tasks") -> list[str] | None:
    """The queues of tasks of a namespace, in order; `None` where an ACL forbids to read them."""
    # As in `conquiet.tasks.keys`, which needs the extra of tasks.
    key = f"{namespace}:queues"
    try:
        return sorted(map(as_text, run_command(client, "SMEMBERS", key, stream=key, group=None)))
    except QueueError as error:
        if isinstance(error.__cause__, NoPermissionError):
            return None
        raise


def queue_facts(client: Client, name: str, *, namespace: str = "tasks") -> QueueFacts:
    """One queue of tasks; nothing is written.

    Raises:
        QueueError: Redis failed.
    """
    from conquiet.tasks.control.queues import read_stats
    from conquiet.tasks.keys import QueueKeys

    keys = QueueKeys(namespace, name)
    stats = read_stats(client, keys)
    seconds, microseconds = _call(client, "TIME", keys=keys)
    now_ms = int(seconds) * 1000 + int(microseconds) // 1000
    overdue = _call(client, "ZCOUNT", keys.delayed, "-inf", now_ms, keys=keys)
    first = _call(
        client, "ZRANGEBYSCORE", keys.delayed, "-inf", now_ms, "WITHSCORES", "LIMIT", 0, 1, keys=keys
    )
    if first:
        # In pairs by RESP3.
        first = first[0][1] if isinstance(first[0], list | tuple) else first[1]
    streams = [keys.streams[one.priority] for one in stats.priorities]
    return QueueFacts(
        name=name,
        is_paused=stats.is_paused,
        queued=stats.queued,
        in_flight=stats.in_flight,
        waiting=stats.waiting,
        delayed=stats.delayed,
        overdue=overdue,
        overdue_ms=now_ms - int(float(first)) if first else 0,
        dead_letters=stats.dead_letters,
        consumers=stats.consumers,
        dead_consumers=_dead_consumers(client, keys, streams, now_ms),
        left_follow_ups=_left_follow_ups(client, keys),
        losses=tuple(
            loss
            for stream, mark in zip(keys.streams, keys.ends, strict=True)
            for loss in losses_of(stream, mark, _call(client, "HGETALL", mark, keys=keys))
        ),
    )


def queue_sample(client: Client, name: str, *, namespace: str = "tasks") -> Sample:
    """One queue of tasks as a sample: queued tasks are its lag, those that were read are pending."""
    from conquiet.tasks.control.queues import read_stats
    from conquiet.tasks.keys import QueueKeys

    keys = QueueKeys(namespace, name)
    stats = read_stats(client, keys)
    infos = [
        as_mapping(_call(client, "XINFO STREAM", keys.streams[one.priority], keys=keys))
        for one in stats.priorities
    ]
    counts = [info.get("entries-added") for info in infos]
    seconds, microseconds = _call(client, "TIME", keys=keys)
    return Sample(
        topic=queue_sample_name(name, namespace),
        group="workers",
        at_ms=int(seconds) * 1000 + int(microseconds) // 1000,
        length=stats.queued + stats.in_flight + stats.waiting,
        added=None if None in counts else sum(int(count or 0) for count in counts),
        lag=stats.queued,
        pending=stats.in_flight + stats.waiting,
        oldest_pending_age_ms=stats.oldest_age_ms,
        dead_letters=stats.dead_letters,
    )


def queue_sample_name(name: str, namespace: str = "tasks") -> str:
    """By which samples of a queue are known; no topic has such a name."""
    return f"{namespace}:{{{name}}}"


def check_queue(queue: QueueFacts) -> Iterator[Finding]:
    """Is it read, does every task get on, and are there dead letters?"""
    name, subject = queue.name, f"queue {queue.name}"
    for loss in queue.losses:
        yield loss_finding(subject, loss)
    if queue.dead_letters:
        text = f"{queue.dead_letters} tasks are dead letters, neither retried nor purged"
        to_do = f"conquiet tasks list --queue {name} --where dead_lettered; then tasks retry or tasks purge."
        yield Finding("warning", "dead-letters", subject, text, to_do)
    if queue.is_paused:
        text = f"the queue is paused, and {queue.unfinished} tasks are in it"
        level: Level = "warning" if queue.unfinished else "note"
        yield Finding(level, "paused", subject, text, f"conquiet workers resume {name}")
    if queue.unfinished and not queue.consumers:
        text = f"{queue.unfinished} tasks are in the queue, and no worker reads it"
        yield Finding(
            "warning", "workers", subject, text, f"conquiet worker package.module:app --queues {name}"
        )
    for consumer in queue.dead_consumers:
        # With others alive it is theirs within a heartbeat.
        if not queue.consumers or consumer.idle_ms > _LATE_MS:
            text = f"worker {consumer.name} has {consumer.pending} tasks and no heartbeat"
            to_do = "The next worker of the queue takes them over: start one, or see in its log why not."
            yield Finding("warning", "dead-worker", subject, text, to_do)
    if queue.overdue_ms > _LATE_MS:
        text = f"{queue.overdue} delayed tasks are overdue, the oldest for {queue.overdue_ms // 1000} s"
        to_do = (
            "A worker adds them as it reads: start one. Where one runs, the delayed set was written by hand."
        )
        yield Finding("warning", "overdue", subject, text, to_do)
    if queue.left_follow_ups:
        text = f"what follows on {queue.left_follow_ups} tasks of canvases was not done for over a minute"
        to_do = "A worker does it with its next heartbeat: start one, or see in its log why not."
        yield Finding("warning", "follow-ups", subject, text, to_do)


def _dead_consumers(
    client: Client, keys: QueueKeys, streams: list[str], now_ms: int
) -> tuple[ConsumerBacklog, ...]:
    from conquiet.tasks.keys import GROUP, WAITING

    alive = _call(client, "ZRANGEBYSCORE", keys.heartbeats, now_ms, "+inf", keys=keys)
    known = {as_text(name) for name in alive} | {WAITING}
    found: dict[str, ConsumerBacklog] = {}
    for stream in streams:
        for consumer in _call(client, "XINFO CONSUMERS", stream, GROUP, keys=keys):
            name, before = as_text(consumer["name"]), found.get(as_text(consumer["name"]))
            if consumer["pending"] and name not in known:
                found[name] = ConsumerBacklog(
                    name=name,
                    pending=consumer["pending"] + (before.pending if before else 0),
                    idle_ms=min(consumer["idle"], before.idle_ms) if before else consumer["idle"],
                )
    return tuple(found[name] for name in sorted(found))


def _left_follow_ups(client: Client, keys: QueueKeys) -> int:
    _, reply = _call(client, "HSCAN", keys.follow_ups, 0, "COUNT", 100, keys=keys)
    texts = reply.values() if isinstance(reply, dict) else reply[1::2]
    return sum(map(_is_late, texts))


def _is_late(follow_up: bytes) -> bool:
    try:
        return float(json.loads(follow_up)["at"]) < time.time() - _LATE_MS / 1000
    except (ValueError, KeyError, TypeError):
        # It cannot be read: no worker will do it.
        return True


def _call(client: Client, *command: Any, keys: QueueKeys) -> Any:
    return run_command(client, *command, stream=keys.prefix, group=None)
