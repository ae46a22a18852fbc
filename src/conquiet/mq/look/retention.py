"""Retention: removes old entries of a topic, never one that some group has not finished."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass

from conquiet.arguments import check_non_negative_int
from conquiet.errors import QueueError, TopicError
from conquiet.logs import MessageLog, message_fields
from conquiet.mq import scripts
from conquiet.mq.dead_letters.streams import DeadLetterStreams
from conquiet.mq.look.stats import group_marks, group_names
from conquiet.mq.metrics import emit
from conquiet.mq.topics import Topic

#: Entries that one script removes: the server does nothing else meanwhile.
_CHUNK = 500
#: Of one partition by its owner, which must renew its leases meanwhile.
_STEPS_IN_A_ROUND = 40

_log = MessageLog(logging.getLogger(__name__))

#: Entries that a dry run counts at most: it reads what it counts.
_MAX_COUNTED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTrim:
    """What a trim did in one partition."""

    partition: int
    removed: int
    #: Groups of the topic that have not begun here; while there are any, nothing is removed.
    missing_groups: tuple[str, ...] = ()
    #: There is more than this trim might remove, or a dry run count.
    has_more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What a trim keeps: what either of the two keeps, and what some group has not finished."""

    length: int | None = None
    age_ms: int | None = None
    #: Also trim a topic that has no group: what is sent to it may be for a group that comes later.
    without_groups: bool = False

    def __post_init__(self) -> None:
        for name in ("length", "age_ms"):
            if getattr(self, name) is not None:
                check_non_negative_int(f"retention {name}", getattr(self, name))

    @classmethod
    def of_policies(cls, topic: Topic) -> Retention:
        """The topic's own.

        Raises:
            TopicError: it has none.
        """
        policies = topic.policies
        if not policies.has_retention:
            raise TopicError(
                topic.name, "has no retention policy; give retention_length or retention_ms to trim it"
            )
        return cls(length=policies.retention_length, age_ms=policies.retention_ms)


class Trimmer:
    """Trims what one consumer owns by the topic's policy; lives as long as the consumer."""

    def __init__(self) -> None:
        self._next_round = 0.0

    def trim(self, topic: Topic, partitions: Collection[int]) -> None:
        """Trim if the policy's interval has passed; a failure is logged, and the next round tries again."""
        every_s = topic.policies.trim_every_s
        if every_s is None or not partitions or time.monotonic() < self._next_round:
            return
        self._next_round = time.monotonic() + every_s
        try:
            if topic.policies.has_retention:
                retention, groups = Retention.of_policies(topic), group_names(group_marks(topic))
                for partition in partitions:
                    trim = trim_partition(topic, partition, retention, groups, max_steps=_STEPS_IN_A_ROUND)
                    emit("conquiet_mq_trimmed_total", trim.removed, topic.name, str(partition))
            _trim_dead_letters(topic, partitions)
        except QueueError as error:
            fields = message_fields(topic=topic.name)
            _log.warning("topic %r could not be trimmed: %s", topic.name, error, extra=fields)


def _trim_dead_letters(topic: Topic, partitions: Collection[int]) -> None:
    policy, letters = topic.policies.dead_letters, DeadLetterStreams(topic)
    # Where all partitions share them, the owner of the first one trims.
    own = [partition for partition in letters.partitions if partition in partitions]
    if policy is None or not own:
        return
    removed = letters.trim(policy, own, max_steps=_STEPS_IN_A_ROUND)
    emit("conquiet_mq_dead_letters_trimmed_total", removed, topic.name)
    if removed:
        _log.warning(
            "%d dead letters of topic %r were deleted by its policy, neither replayed nor purged: %s",
            *(removed, topic.name, policy),
            extra=message_fields(topic=topic.name),
        )


def trim_partition(
    topic: Topic,
    partition: int,
    retention: Retention,
    groups: Collection[bytes],
    *,
    max_steps: int | None = None,
    dry_run: bool = False,
) -> PartitionTrim:
    """Trim one partition in bounded steps, given all groups of the topic; with `dry_run` only count."""
    removed = steps = 0
    while True:
        removed_now, has_more, missing = scripts.trim(
            topic,
            topic.keys.stream(partition),
            groups,
            length=retention.length,
            age_ms=retention.age_ms,
            limit=_MAX_COUNTED if dry_run else _CHUNK,
            dry_run=dry_run,
            without_groups=retention.without_groups,
        )
        removed, steps = removed + removed_now, steps + 1
        if dry_run or not has_more or steps == max_steps:
            break
    return PartitionTrim(partition=partition, removed=removed, missing_groups=missing, has_more=has_more)
