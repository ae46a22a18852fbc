"""Delayed messages: whoever consumes a topic moves those whose time has come to their partitions."""

from __future__ import annotations

import logging
import re
import time

from conquiet.logs import MessageLog, message_fields
from conquiet.mq.metrics import emit
from conquiet.mq.topics import Topic, Topics

#: Messages that one script moves: the server does nothing else meanwhile.
_CHUNK = 100

_log = MessageLog(logging.getLogger(__name__))


def move_delayed(topic: Topic, *, budget_s: float = 0.1) -> bool:
    """Move what is due, and tell whether more is left when the time is over; many may call it at once.

    Args:
        budget_s: whoever moves messages has leases to renew, so what takes longer is for the next call.

    Raises:
        TopicError: the topic was deleted.
    """
    topic = Topics(topic.client).open_again(topic)
    end = time.monotonic() + budget_s
    # In turn: on a cluster each partition has delayed messages of its own, and none waits for another.
    buckets = _buckets(topic)
    while buckets := [partitions for partitions in buckets if _has_more_after_chunk(topic, partitions)]:
        if time.monotonic() >= end:
            return True
    return False


def copies_for(topic: Topic, group: str) -> dict[int, list[bytes]]:
    """The names of the copies that wait to be retried by a group, each with a partition it waits beside."""
    # As settle_and_read.lua names them; only who has a plain name can consume, so it needs no escapes.
    is_copy = re.compile(rf"{re.escape(group)}:\d+-\d+:".encode())
    found: dict[int, list[bytes]] = {}
    for partition, *_ in _buckets(topic):
        cursor = None
        while cursor != 0:
            command = ("ZSCAN", topic.keys.delayed(partition), cursor or 0, "MATCH", f"{group}:*")
            cursor, items = topic.call(*command, "COUNT", 1_000)
            found.setdefault(partition, []).extend(name for name, _ in items if is_copy.match(name))
    # A scan may tell the same twice.
    return {partition: sorted(set(names)) for partition, names in found.items() if names}


def forget(topic: Topic, partition: int, names: list[bytes]) -> None:
    """Remove delayed messages by their names."""
    keys = [topic.keys.delayed(partition), topic.keys.delayed_items(partition)]
    for start in range(0, len(names), _CHUNK):
        topic.run("forget_delayed", keys, *names[start : start + _CHUNK])


def _buckets(topic: Topic) -> list[list[int]]:
    buckets: dict[str, list[int]] = {}
    for partition in topic.partitions:
        buckets.setdefault(topic.keys.delayed(partition), []).append(partition)
    return list(buckets.values())


def _has_more_after_chunk(topic: Topic, partitions: list[int]) -> bool:
    keys, first = topic.keys, partitions[0]
    streams = [keys.stream(partition) for partition in partitions]
    all_keys = [keys.delayed(first), keys.delayed_items(first), *streams]
    moved, stuck = topic.run_sealed("move_due", all_keys, "", _CHUNK, *partitions, seal=all_keys[:1])
    if stuck:
        emit("conquiet_mq_delayed_stuck_total", len(stuck), topic.name)
        _log.warning(
            "%s delayed messages of topic %r stay in %r, %r among them: they have no data, or a partition "
            "that the topic does not have",
            len(stuck),
            topic.name,
            all_keys[0],
            stuck[0].decode(errors="backslashreplace"),
            extra=message_fields(topic=topic.name),
        )
    is_full: bool = moved + len(stuck) == _CHUNK
    return is_full
