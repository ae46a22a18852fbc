"""move_clock: time passes for what waits in a topic or a stream, without waiting for it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from conquiet.mq.topics import Topic
from conquiet.queue import RedisStreamsQueue
from conquiet.queue.connection import Client

_ALL = 10_000


def move_clock(source: Topic | RedisStreamsQueue, **duration: float) -> None:
    """Let time pass for a topic or a stream: `move_clock(topic, minutes=5)`, as `timedelta` takes it.

    Delayed messages and retries are due by so much earlier, and what is pending is idle for so much longer,
    in every group, for up to 10,000 messages of each. Nothing is handled before the next drain. Tasks have
    `TaskTestBed.move_clock`.

    Examples:
        >>> queue.enqueue({"order_id": 7})
        '1...-0'
        >>> left = queue.read(100)  # and not acked
        >>> move_clock(queue, minutes=10)
        >>> drain_stale(queue, bill, engine, min_idle_ms=600_000).handled
        1
    """
    passed = timedelta(**duration)
    if passed <= timedelta(0):
        raise ValueError(f"time passes forward only, got {duration!r}")
    passed_ms = round(passed.total_seconds() * 1000)
    if isinstance(source, RedisStreamsQueue):
        _make_idle(source.client, source.config.stream_key, passed_ms)
        return
    for key in {source.keys.delayed(partition) for partition in source.partitions}:
        _make_due(source.client, key, passed_ms)
    for partition in source.partitions:
        stream = source.keys.stream(partition)
        for group in _make_idle(source.client, stream, passed_ms):
            _make_due(source.client, source.keys.waiting(group, partition), passed_ms)


def _make_due(client: Client, key: str, passed_ms: int) -> None:
    plain: Any = client
    for member, _ in plain.zrange(key, 0, -1, withscores=True):
        plain.zincrby(key, -passed_ms, member)


def _make_idle(client: Client, stream: str, passed_ms: int) -> list[str]:
    """The groups of the stream, whose pending entries are older now."""
    plain: Any = client
    groups = [_text(info["name"]) for info in plain.xinfo_groups(stream)] if plain.exists(stream) else []
    for group in groups:
        for entry in plain.xpending_range(stream, group, "-", "+", _ALL):
            consumer, idle_ms = _text(entry["consumer"]), entry["time_since_delivered"] + passed_ms
            # JUSTID, and the count as it was: it is not delivered now.
            count = entry["times_delivered"]
            ids = [entry["message_id"]]
            plain.xclaim(stream, group, consumer, 0, ids, idle=idle_ms, retrycount=count, justid=True)
    return groups


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)
