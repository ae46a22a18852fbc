"""The names of every Redis key of the MQ; no other module spells one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

from conquiet.queue.connection import key_beside

#: "single": the names of a single server. "hash_tagged": the same with a hash tag per partition, so that the
#: partitions of a topic spread over a cluster while all keys of one partition share a slot. "bare_stream": a
#: stream that was not created as a topic; it is its own only partition.
Layout = Literal["single", "hash_tagged", "bare_stream"]

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")


def check_topic_part(argument: str, value: object) -> None:
    """Refuse a topic or group name that would be ambiguous in a key."""
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be a str, not {value!r}")
    if not _NAME.fullmatch(value):
        raise ValueError(f"{argument} must be 1 to 200 letters, digits, '.', '_' or '-', got {value!r}")


@dataclass(frozen=True, slots=True)
class RegistryKeys:
    """The keys that list topics; on a cluster all in one slot, so that one script can write them."""

    is_cluster: bool

    @property
    def registry(self) -> str:
        """Set: the names of all topics."""
        return f"{self._prefix}:topics:registry"

    @property
    def deleted(self) -> str:
        """Sorted set: the streams of topics that were deleted lately; checks of streams' ends read it."""
        return f"{self._prefix}:topics:deleted"

    def meta(self, topic: str) -> str:
        """Hash: what a topic is."""
        return f"{self._prefix}:topic:{topic}:meta"

    def partitions(self, topic: str) -> str:
        """Set: the stream keys of a topic's partitions."""
        return f"{self._prefix}:topic:{topic}:partitions"

    def deleting(self, topic: str) -> str:
        """Hash: what a topic was whose deletion has not ended."""
        return f"{self._prefix}:topic:{topic}:deleting"

    @property
    def _prefix(self) -> str:
        return "{streaming:mq}" if self.is_cluster else "streaming:mq"


@dataclass(frozen=True, slots=True)
class TopicKeys:
    """The keys of one topic's partitions and groups."""

    topic: str
    layout: Layout
    #: Only a bare stream needs it: the stream has no hash tag of ours, so its keys take that slot.
    is_cluster: bool = False

    @property
    def has_one_slot(self) -> bool:
        """Whether the keys of a partition share a slot; not those of a bare stream with unbalanced braces."""
        return self.layout != "bare_stream" or not self.is_cluster or "}" not in _hashed_part(self.topic)

    def stream(self, partition: int) -> str:
        """Stream: the messages of a partition."""
        if self.layout == "bare_stream":
            return self.topic
        return f"stream:topic:{self._tagged(partition)}"

    def dead_letters(self, partition: int) -> str:
        """Stream: the dead letters; one per topic, on a cluster one per partition."""
        if self.layout == "bare_stream":
            return key_beside(self.topic, "dlq")
        return f"stream:topic:{self._bucket(partition)}:dlq"

    def lease(self, group: str, partition: int) -> str:
        """Hash: who owns a partition for a group, in which epoch, until when."""
        return self._of_group("lease", group, partition)

    def epoch(self, group: str, partition: int) -> str:
        """Counter: how often the partition was acquired."""
        return self._of_group("epoch", group, partition)

    def waiting(self, group: str, partition: int) -> str:
        """Sorted set: pending entries that wait for their retry, by due time."""
        return self._of_group("waiting", group, partition)

    def failures(self, group: str, partition: int) -> str:
        """Hash: first delivery and last error of entries that failed and are not settled."""
        return self._of_group("failures", group, partition)

    def delayed(self, partition: int) -> str:
        """Sorted set: items to add later, by due time; one per topic, on a cluster one per partition."""
        return f"streaming:mq:retry:{self._bucket(partition)}"

    def delayed_items(self, partition: int) -> str:
        """Hash: the items of `delayed`."""
        return f"streaming:mq:retry:item:{self._bucket(partition)}"

    def end(self, partition: int) -> str:
        """Hash: where the stream ended when it was last checked, and what was lost of it."""
        if self.layout == "bare_stream":
            return key_beside(self.topic, "end")
        return f"streaming:mq:end:{self._tagged(partition)}"

    def deduped(self, partition: int) -> str:
        """Hash: dedupe ids and the entries they were added as; one per topic, on a cluster per partition."""
        return f"streaming:mq:dedupe:{self._bucket(partition)}"

    def deduped_until(self, partition: int) -> str:
        """Sorted set: the same dedupe ids, by the time at which they are forgotten."""
        return f"streaming:mq:dedupe:until:{self._bucket(partition)}"

    def replayed(self, partition: int) -> str:
        """Hash: the last dead letter that each caller replayed, for a while; as `deduped`, per partition."""
        return f"streaming:mq:replayed:{self._bucket(partition)}"

    def groups(self, partition: int) -> str:
        """Set: every group that ever owned the partition; some of its keys outlive the group."""
        return f"streaming:mq:groups:{self._bucket(partition)}"

    def members(self, group: str) -> str:
        """Sorted set: the live consumers of a group, by the time at which they count as dead."""
        name = f"{{{self._name}}}" if self.layout == "hash_tagged" else self._name
        return f"streaming:mq:members:{name}:{group}"

    def member_limits(self, group: str) -> str:
        """Sorted set: of those that have a limit, the most partitions that they may own."""
        return f"{self.members(group)}:limits"

    @property
    def _name(self) -> str:
        if self.layout != "bare_stream":
            return self.topic
        # A bare stream may have any key as its name, colons and braces too.
        quoted = quote(self.topic, safe="")
        return f"{{{_hashed_part(self.topic)}}}{quoted}" if self.is_cluster else quoted

    def _tagged(self, partition: int) -> str:
        name = f"{self.topic}:p:{partition}"
        return f"{{{name}}}" if self.layout == "hash_tagged" else name

    def _bucket(self, partition: int) -> str:
        return self._tagged(partition) if self.layout == "hash_tagged" else self._name

    def _of_group(self, what: str, group: str, partition: int) -> str:
        if self.layout == "hash_tagged":
            return f"streaming:mq:{what}:{self._tagged(partition)}:{group}"
        return f"streaming:mq:{what}:{self._name}:{group}:{partition}"


def _hashed_part(key: str) -> str:
    # As Redis Cluster does it: what stands in the first braces, if anything does, else the whole key.
    start = key.find("{")
    end = key.find("}", start + 1)
    return key[start + 1 : end] if start >= 0 and end > start + 1 else key
