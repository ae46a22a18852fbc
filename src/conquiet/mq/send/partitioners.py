"""Which partition a message goes to; the same answer in every process and Python version."""

from __future__ import annotations

import itertools
import random
from hashlib import blake2b
from typing import Protocol


class Partitioner(Protocol):
    """Chooses a partition from 0 to `partition_count` - 1.

    Examples:
        >>> class ByCountry:
        ...     def partition_for(self, key, partition_count):
        ...         return 0 if key == "de" else 1 % partition_count
        >>> producer = Producer(client, partitioner=ByCountry())
    """

    def partition_for(self, key: str | None, partition_count: int) -> int:
        """The partition of a message with this key."""


class HashPartitioner:
    """A key's hash modulo the partition count; messages without a key go round.

    Growing a topic moves nearly every key to another partition.

    Examples:
        >>> HashPartitioner().partition_for("ann", 4) == HashPartitioner().partition_for("ann", 4)
        True
    """

    def __init__(self) -> None:
        self._keyless = RoundRobinPartitioner()

    def partition_for(self, key: str | None, partition_count: int) -> int:
        if key is None:
            return self._keyless.partition_for(None, partition_count)
        return stable_hash(key) % partition_count


class ConsistentHashPartitioner(HashPartitioner):
    """Jump consistent hashing: growing from P to P + 1 partitions moves one key in P + 1, to the new one.

    Examples:
        >>> producer = Producer(client, partitioner=ConsistentHashPartitioner())
    """

    def partition_for(self, key: str | None, partition_count: int) -> int:
        if key is None:
            return self._keyless.partition_for(None, partition_count)
        # Lamping and Veach, "A Fast, Minimal Memory, Consistent Hash Algorithm".
        hashed, bucket, jump = stable_hash(key), -1, 0
        while jump < partition_count:
            bucket = jump
            hashed = (hashed * 2862933555777941757 + 1) & 0xFFFFFFFFFFFFFFFF
            jump = int((bucket + 1) * ((1 << 31) / ((hashed >> 33) + 1)))
        return bucket


class RoundRobinPartitioner:
    """One after the other, whatever the key; the start differs between producers.

    Examples:
        >>> partitioner = RoundRobinPartitioner()
        >>> len({partitioner.partition_for(None, 3) for _ in range(3)})
        3
    """

    def __init__(self) -> None:
        self._next = itertools.count(random.randrange(1 << 30))  # noqa: S311 -- spreads load, hides nothing

    def partition_for(self, key: str | None, partition_count: int) -> int:
        return next(self._next) % partition_count


def stable_hash(key: str) -> int:
    """64 bits of BLAKE2b over the key's UTF-8: unlike `hash()`, the same everywhere."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")
