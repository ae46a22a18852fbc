"""Topics: named sets of partitions, found through a registry and never through SCAN."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

from redis.cluster import RedisCluster

from conquiet.arguments import check_positive_int
from conquiet.errors import TopicError
from conquiet.mq.keys import Layout, RegistryKeys, TopicKeys, check_topic_part
from conquiet.mq.scripts import run_script
from conquiet.queue.connection import AS_BYTES, Client, visible_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPolicies:
    """What is kept; without a policy everything is. Nothing is removed that some group has not finished."""

    #: Entries that `trim` keeps in each partition, finished or not.
    retention_length: int | None = None
    #: Age below which `trim` keeps entries.
    retention_ms: int | None = None

    def __post_init__(self) -> None:
        for name in ("retention_length", "retention_ms"):
            if getattr(self, name) is not None:
                check_positive_int(name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as it was when it was opened, with the client that reaches it."""

    client: Client
    name: str
    partition_count: int
    layout: Layout
    policies: TopicPolicies = TopicPolicies()
    created_at_ms: int | None = None

    @property
    def keys(self) -> TopicKeys:
        """The names of its keys."""
        return TopicKeys(self.name, self.layout, isinstance(self.client, RedisCluster))

    @property
    def partitions(self) -> range:
        """The numbers of its partitions."""
        return range(self.partition_count)

    def run(self, script: str, keys: list[str], *arguments: Any, group: str | None = None) -> Any:
        """Run a script of the MQ; a Redis failure is a `QueueError` that names the stream."""
        with self.visible(script, group=group):
            return run_script(self.client, script, keys, arguments)

    def call(self, *command: Any, group: str | None = None, **options: Any) -> Any:
        """Run one Redis command; a Redis failure is a `QueueError` that names the topic."""
        with self.visible(command[0], group=group):
            return self.client.execute_command(*command, **AS_BYTES, **options)  # type: ignore[no-untyped-call]

    def visible(self, operation: str, group: str | None = None) -> AbstractContextManager[None]:
        """Turn whatever redis-py raises inside into a `QueueError`."""
        return visible_errors(operation, stream=self.name, group=group)


class Topics:
    """The registry of one server or cluster."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._is_cluster = isinstance(client, RedisCluster)
        self._keys = RegistryKeys(self._is_cluster)

    def create(self, name: str, partitions: int = 1, policies: TopicPolicies | None = None) -> Topic:
        """Create the topic, or open it as it is if it exists; of many that try at once, one creates it.

        Raises:
            TopicError: it exists with another number of partitions.
        """
        topic = self._write(name, partitions, policies, "create")
        if topic.partition_count != partitions:
            raise TopicError(
                name,
                f"exists with {topic.partition_count} partitions, not {partitions}; `grow` adds partitions",
            )
        return topic

    def grow(self, name: str, partitions: int) -> Topic:
        """Add partitions.

        With `HashPartitioner` nearly every key moves to another partition, with `ConsistentHashPartitioner`
        only a few: until the old partitions are drained, messages of a moved key may be handled out of order.

        Raises:
            TopicError: it is not there, or would shrink.
        """
        topic = self._write(name, partitions, None, "grow")
        if topic.partition_count == 0:
            raise TopicError(name, "is not there; `create` makes it")
        if topic.partition_count > partitions:
            raise TopicError(
                name,
                f"has {topic.partition_count} partitions and cannot shrink to {partitions}: "
                "messages in the removed partitions would have no reader",
            )
        return topic

    def open(self, name: str) -> Topic:
        """The topic; a name without meta is a plain stream, its own only partition (legacy mode)."""
        with visible_errors("open", stream=name, group=None):
            reply = self._client.hgetall(self._keys.meta(name))
        meta = {_text(field): _text(value) for field, value in reply.items()}
        if not meta:
            return Topic(client=self._client, name=name, partition_count=1, layout="legacy")
        return self._topic(name, meta)

    def names(self) -> list[str]:
        """Every topic's name, in order."""
        with visible_errors("SMEMBERS", stream=self._keys.registry, group=None):
            return sorted(_text(name) for name in self._client.smembers(self._keys.registry))

    def delete(self, name: str) -> None:
        """Delete a topic with all its keys: messages, dead letters, leases, retries.

        The topic leaves the registry first: a crash in between leaves keys that a second call deletes.
        """
        topic = self.open(name)
        if topic.layout == "legacy":
            raise TopicError(name, "is not there; a plain stream is deleted with DEL")
        with visible_errors("delete", stream=name, group=None):
            groups = _groups_of(topic)
            self._client.srem(self._keys.registry, name)
            for key in _all_keys(topic, groups):
                self._client.delete(key)
            # Last: until then a second call knows how many partitions there are.
            self._client.delete(self._keys.partitions(name), self._keys.meta(name))

    def _write(self, name: str, partitions: int, policies: TopicPolicies | None, mode: str) -> Topic:
        check_topic_part("topic", name)
        check_positive_int("partitions", partitions)
        layout: Layout = "hashed" if self._is_cluster else "plain"
        keys = TopicKeys(name, layout)
        encoded = "" if policies is None else json.dumps(asdict(policies))
        streams = [keys.stream(partition) for partition in range(partitions)]
        arguments = [name, "", layout, encoded, mode, *streams]
        with visible_errors(mode, stream=name, group=None):
            all_keys = [self._keys.registry, self._keys.meta(name), self._keys.partitions(name)]
            _, count = run_script(self._client, "create_topic", all_keys, arguments)
        return (
            self.open(name)
            if count
            else Topic(client=self._client, name=name, partition_count=0, layout=layout)
        )

    def _topic(self, name: str, meta: Mapping[str, str]) -> Topic:
        return Topic(
            client=self._client,
            name=name,
            partition_count=int(meta["partitionCount"]),
            layout=meta["layout"],  # type: ignore[arg-type]  # written by create_topic.lua
            policies=TopicPolicies(**json.loads(meta.get("policies", "{}"))),
            created_at_ms=int(meta["createdAt"]),
        )


def _groups_of(topic: Topic) -> set[str]:
    groups = set()
    for partition in topic.partitions:
        if topic.client.exists(topic.keys.stream(partition)):
            infos = topic.client.xinfo_groups(topic.keys.stream(partition))
            groups |= {_text(info["name"]) for info in infos}
    return groups


def _all_keys(topic: Topic, groups: set[str]) -> set[str]:
    keys = topic.keys
    found = set()
    for partition in topic.partitions:
        found |= {keys.stream(partition), keys.dead_letters(partition)}
        found |= {keys.delayed(partition), keys.delayed_items(partition)}
        found |= {keys.deduped(partition), keys.deduped_until(partition)}
        for group in groups:
            found |= {keys.lease(group, partition), keys.epoch(group, partition), keys.members(group)}
            found |= {keys.waiting(group, partition), keys.failures(group, partition)}
    return found


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
