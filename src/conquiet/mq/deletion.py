"""The keys of a topic's partitions and groups, deleted so that running consumers leave nothing behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from conquiet.mq.scripts import ScriptTopic, delete_partitions
from conquiet.queue.connection import drains_key, execute, visible_errors
from conquiet.queue.ends import end_mark


def delete_keys(topic: ScriptTopic, partitions: Iterable[int]) -> None:
    """Delete every key of these partitions, those that share a slot at once, and their groups' members."""
    # As bytes: another program may have created a group whose name is not UTF-8. It has no keys of ours.
    groups: set[bytes] = set()
    for some in buckets(topic, partitions):
        # A first call says which groups there are; a group that joins until the last call is found by that.
        while unknown := delete_partitions(topic, some, _keys_of(topic, some, groups), groups):
            groups |= set(unknown)
    for group in _names(groups):
        with visible_errors("delete", stream=topic.name, group=group):
            execute(topic.client, "DEL", topic.keys.members(group), topic.keys.member_limits(group))


def buckets(topic: ScriptTopic, partitions: Iterable[int]) -> list[list[int]]:
    """Partitions that share their keys for delayed messages, and on a cluster their slot: one each there."""
    by_key: dict[str, list[int]] = {}
    for partition in partitions:
        by_key.setdefault(topic.keys.delayed(partition), []).append(partition)
    return list(by_key.values())


def _keys_of(topic: ScriptTopic, partitions: Iterable[int], groups: Iterable[bytes]) -> list[str]:
    # Not above: who only sends imports no SQLAlchemy.
    from conquiet.consume.dead_letter import dead_letter_stream

    keys = topic.keys
    found: set[str] = set()
    for partition in partitions:
        stream = keys.stream(partition)
        found |= {keys.dead_letters(partition), keys.replayed(partition), keys.end(partition)}
        # Of drains of the partition's stream.
        found |= {dead_letter_stream(stream), end_mark(stream)}
        found |= {keys.delayed(partition), keys.delayed_items(partition)}
        found |= {keys.deduped(partition), keys.deduped_until(partition)}
        for group in _names(groups):
            found |= {keys.lease(group, partition), keys.epoch(group, partition)}
            found |= {keys.waiting(group, partition), keys.failures(group, partition)}
            found.add(drains_key(stream, group))
    return sorted(found)


def _names(groups: Iterable[bytes]) -> Iterator[str]:
    for group in groups:
        try:
            yield group.decode()
        except UnicodeDecodeError:
            continue
