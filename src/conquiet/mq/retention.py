"""Retention: removes old entries of a topic, never one that some group has not finished."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from conquiet.arguments import check_non_negative_int
from conquiet.errors import TopicError
from conquiet.mq.topics import Topic

#: Entries that one script removes: the server does nothing else meanwhile.
_CHUNK = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTrim:
    """What a trim did in one partition."""

    partition: int
    removed: int
    #: Groups of the topic that have not begun here; while there are any, nothing is removed.
    missing_groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What a trim keeps: whatever one of the two wants kept, and whatever some group has not finished."""

    length: int | None = None
    age_ms: int | None = None

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
        if policies.retention_length is None and policies.retention_ms is None:
            raise TopicError(
                topic.name, "has no retention policy; give retention_length or retention_ms to trim it"
            )
        return cls(length=policies.retention_length, age_ms=policies.retention_ms)


def trim_partition(
    topic: Topic, partition: int, retention: Retention, groups: Collection[str]
) -> PartitionTrim:
    """Trim one partition in bounded steps, given all groups of the topic."""
    length = "" if retention.length is None else retention.length
    age_ms = "" if retention.age_ms is None else retention.age_ms
    removed = 0
    while True:
        keys = [topic.keys.stream(partition)]
        step, has_more, missing = topic.run("trim", keys, length, age_ms, "", _CHUNK, *groups)
        removed += step
        if not has_more:
            names = tuple(name.decode() for name in missing)
            return PartitionTrim(partition=partition, removed=removed, missing_groups=names)
