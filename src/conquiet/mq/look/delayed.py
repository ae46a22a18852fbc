"""Delayed messages: what waits to be added to a partition, sent with a delay or to be retried as a copy."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from conquiet.mq.deletion import buckets
from conquiet.mq.envelope import Envelope
from conquiet.mq.scripts import forget_delayed
from conquiet.mq.topics import Topic
from conquiet.payload import Payload, decode_payload
from conquiet.queue.batch_size import BATCH_BYTES, FEW_MESSAGES

_MAX_BYTES = 4 * BATCH_BYTES
_ITEM = re.compile(rb"(\d+):(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedMessage:
    """One message that no group has been given yet; `None` is what cannot be read of it.

    Examples:
        >>> later = Topics(client).create("later", partitions=1)
        >>> sent = Producer(client).send(later, {"order_id": 7}, key="ann", delay_ms=3_600_000)
        >>> [waiting] = MqAdmin(client).delayed(later)
        >>> waiting.key, waiting.payload
        ('ann', {'order_id': 7})
        >>> MqAdmin(client).cancel_delayed(later, [waiting.name])
        1
    """

    #: What `Producer.send` returned; of a copy, its group, entry and stream.
    name: str
    due_at_ms: int
    #: The only group that a copy is for; `None` for a message that was sent with a delay.
    group: str | None = None
    partition: int | None = None
    key: str | None = None
    #: Attempts before it, above 0 for a copy.
    attempt: int | None = None
    payload: Payload | None = None

    @classmethod
    def of(cls, topic: str, name: bytes, due_at_ms: float, item: bytes | None) -> DelayedMessage:
        """Read what is kept of it: a name with its time, and the partition with the envelope."""
        # A score may be infinite.
        due = int(max(0, min(due_at_ms, 2**63)))
        facts: dict[str, Any] = {"name": name.decode(errors="backslashreplace"), "due_at_ms": due}
        match = _ITEM.fullmatch(item or b"")
        try:
            payload = None if match is None else decode_payload(match[2])
        except ValueError:
            payload = None
        if match is None or payload is None:
            return cls(**facts)
        envelope = Envelope.of(payload, topic=topic, partition=int(match[1]))
        return cls(
            **facts,
            group=envelope.for_group,
            partition=envelope.partition,
            key=envelope.key,
            attempt=envelope.attempt,
            payload=envelope.payload,
        )


def count_delayed(topic: Topic) -> int:
    return sum(
        topic.call("ZCARD", topic.keys.delayed(first)) for first, *_ in buckets(topic, topic.partitions)
    )


def delayed_messages(topic: Topic, limit: int) -> tuple[DelayedMessage, ...]:
    """The first ones to come due, up to `limit`, or 32 MiB of them."""
    found: list[DelayedMessage] = []
    for first, *_ in buckets(topic, topic.partitions):
        range_ = ("-inf", "+inf", "WITHSCORES", "LIMIT", 0, limit)
        rows = topic.call("ZRANGEBYSCORE", topic.keys.delayed(first), *range_, withscores=True)
        size = 0
        while rows and size < _MAX_BYTES:
            some, rows = rows[:FEW_MESSAGES], rows[FEW_MESSAGES:]
            items = topic.call("HMGET", topic.keys.delayed_items(first), *(name for name, _ in some))
            size += sum(len(item or b"") for item in items)
            for (name, due_at_ms), item in zip(some, items, strict=True):
                found.append(DelayedMessage.of(topic.name, name, due_at_ms, item))
    return tuple(sorted(found, key=lambda message: (message.due_at_ms, message.name))[:limit])


def cancel_delayed(topic: Topic, names: Iterable[str]) -> int:
    """Delete delayed messages by their names, and return how many there were."""
    encoded = [name.encode() for name in names]
    if not encoded:
        return 0
    return sum(forget_delayed(topic, first, encoded) for first, *_ in buckets(topic, topic.partitions))
