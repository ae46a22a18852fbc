"""Tasks that keep streams and topics in order by a schedule, for applications without an orchestrator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from conquiet.consume import DrainLimits, drain_stale
from conquiet.mq import DeadLetterPolicy, DeadLetters, MqAdmin, Topics
from conquiet.queue import QueueConfig, RedisStreamsQueue, unique_consumer_name
from conquiet.tasks.app import TaskApp

#: What their names begin with.
PREFIX = "conquiet."


def add_maintenance(
    app: TaskApp, *, queue: str = "default", handlers: Mapping[str, Callable[..., Any]] | None = None
) -> None:
    """Declare the tasks `conquiet.trim`, `trim_dead_letters`, `prune_consumers` and `claim_stale`.

    Not every app has them: who may enqueue them may have entries removed, with the rights of the worker.

    Args:
        queue: of all four.
        handlers: by name; `claim_stale` has the name of the one that handles what it claims.

    Examples:
        >>> shop = TaskApp(server.url, namespace="maintained")
        >>> add_maintenance(shop)
        >>> given = {"name": "orders", "keep": 10_000}
        >>> schedule = shop.schedule("trim", "conquiet.trim", given, cron="0 3 * * *")
    """
    known = dict(handlers or {})

    def trim(
        name: str, keep: int | None = None, keep_for_s: float | None = None, without_groups: bool = False
    ) -> int:
        """Remove old entries that every group has finished, as `conquiet trim` does."""
        trims = MqAdmin(app.client).trim(
            name, retention_length=keep, retention_ms=_ms(keep_for_s), without_groups=without_groups
        )
        return sum(partition.removed for partition in trims)

    def trim_dead_letters(name: str, keep: int | None = None, keep_for_s: float | None = None) -> int:
        """Delete old dead letters, as `conquiet dlq trim` does."""
        policy = None
        if keep is not None or keep_for_s is not None:
            policy = DeadLetterPolicy(retention_length=keep, retention_ms=_ms(keep_for_s))
        return DeadLetters(Topics(app.client).open(name)).trim(policy)

    def prune_consumers(name: str, group: str) -> list[str]:
        """Forget consumers that have nothing pending and have ended, as `conquiet consumers prune` does."""
        return sorted({consumer.name for consumer in MqAdmin(app.client).prune_consumers(name, group)})

    def claim_stale(
        name: str,
        group: str,
        handler: str | None = None,
        to: str | None = None,
        min_idle_s: float = 60.0,
        limit: int = 1_000,
    ) -> int:
        """Take over what dead consumers left, as `conquiet claim-stale` does; returns how many it claimed."""
        if (handler is None) == (to is None):
            raise ValueError("give handler, one of add_maintenance, or to, the name of a consumer")
        stream = RedisStreamsQueue(app.client, QueueConfig(name, group, to or unique_consumer_name("task")))
        idle_ms = _ms(min_idle_s) or 0
        if handler is None:
            return len(stream.claim_ids(idle_ms, limit))
        if handler not in known or app.engine is None:
            raise ValueError(f"add_maintenance was given no handler {handler!r}, or the app has no database")
        limits = DrainLimits(max_messages=limit)
        return drain_stale(stream, known[handler], app.engine, limits, min_idle_ms=idle_ms).read

    for function in (trim, trim_dead_letters, prune_consumers, claim_stale):
        app.task(name=f"{PREFIX}{function.__name__}", queue=queue)(function)


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
