"""Delayed messages: every consumer of a topic moves those that are due to their partitions."""

from __future__ import annotations

import logging
import re
import time

from conquiet.logs import MessageLog, message_fields
from conquiet.mq.deletion import buckets
from conquiet.mq.metrics import emit
from conquiet.mq.scripts import forget_delayed, move_due
from conquiet.mq.topics import Topic, Topics

#: Messages that one script moves: the server does nothing else meanwhile.
_CHUNK = 100

_log = MessageLog(logging.getLogger(__name__))


def move_delayed(topic: Topic, *, budget_s: float = 0.1) -> bool:
    """Move what is due, and return whether more is left when the time is up; many may call it at once.

    Args:
        budget_s: the caller has leases to renew, so what takes longer is for the next call.

    Raises:
        TopicError: the topic was deleted.
    """
    topic = Topics(topic.client).open_again(topic)
    end = time.monotonic() + budget_s
    # By turns: on a cluster each partition has delayed messages of its own, and none waits for another.
    left = buckets(topic, topic.partitions)
    while left:
        for partitions in left.copy():
            moved, stuck = move_due(topic, partitions, _CHUNK)
            if moved + len(stuck) < _CHUNK:
                left.remove(partitions)
            if stuck:
                emit("conquiet_mq_delayed_stuck_total", len(stuck), topic.name)
                _log.warning(
                    "%s delayed messages of topic %r stay in %r, %r among them: they have no data, or a "
                    "partition that the topic does not have",
                    len(stuck),
                    topic.name,
                    topic.keys.delayed(partitions[0]),
                    stuck[0].decode(errors="backslashreplace"),
                    extra=message_fields(topic=topic.name),
                )
        if time.monotonic() >= end:
            break
    return bool(left)


def copies_for(topic: Topic, group: str) -> dict[int, list[bytes]]:
    """The names of the copies that wait to be retried by a group, each with a partition it waits beside."""
    # As settle_and_read.lua names them; a group that consumes has a plain name, so it needs no escapes.
    is_copy = re.compile(rf"{re.escape(group)}:\d+-\d+:".encode())
    copies: dict[int, list[bytes]] = {}
    for partition, *_ in buckets(topic, topic.partitions):
        names: set[bytes] = set()  # a scan may return a name twice
        cursor = None
        while cursor != 0:
            command = ("ZSCAN", topic.keys.delayed(partition), cursor or 0, "MATCH", f"{group}:*")
            cursor, items = topic.call(*command, "COUNT", 1_000)
            names |= {name for name, _ in items if is_copy.match(name)}
        if names:
            copies[partition] = sorted(names)
    return copies


def forget(topic: Topic, partition: int, names: list[bytes]) -> None:
    """Remove delayed messages by their names."""
    for start in range(0, len(names), _CHUNK):
        forget_delayed(topic, partition, names[start : start + _CHUNK])
