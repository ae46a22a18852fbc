"""Leases: one owner per partition and group, with an epoch that rises whenever a partition changes hands."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from conquiet.mq.topics import Topic


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to read and settle one partition, for as long as it is renewed."""

    partition: int
    owner: str
    epoch: int


class LeaseStore:
    """Acquires, renews and releases the leases of one group; each is one script on the server.

    A lease is eligible to be acquired if
    - nobody holds it,
    - or its time is over by the server's clock,
    - or the caller holds it already: then it is extended and keeps its epoch.
    Only an owner whose time is not over, in the same epoch, renews, releases or settles.
    """

    def __init__(self, topic: Topic, group: str, *, now_ms: Callable[[], int] | None = None) -> None:
        self._topic = topic
        self._group = group
        self._now_ms = now_ms

    @property
    def now(self) -> int | str:
        """The time to pass to scripts: empty for the server's own."""
        return "" if self._now_ms is None else self._now_ms()

    def acquire(self, partition: int, owner: str, ttl_ms: int) -> Lease | None:
        """The lease, or `None` if somebody else has it."""
        keys = [
            self._topic.keys.lease(self._group, partition),
            self._topic.keys.epoch(self._group, partition),
        ]
        epoch = self._topic.run("acquire_lease", keys, owner, ttl_ms, self.now, group=self._group)
        return None if epoch is None else Lease(partition, owner, epoch)

    def renew(self, lease: Lease, ttl_ms: int, in_flight: Iterable[tuple[str, int]] = ()) -> bool:
        """Extend the lease and keep messages (entry id, delivery count) alive; `False` if it is lost."""
        keys = self._topic.keys
        flat = [part for message in in_flight for part in message]
        renewed: int = self._topic.run(
            "renew_lease",
            [keys.lease(self._group, lease.partition), keys.stream(lease.partition)],
            *(lease.owner, lease.epoch, self.now, ttl_ms, self._group, *flat),
            group=self._group,
        )
        return renewed == 1

    def release(self, lease: Lease) -> bool:
        """Give the lease up; `False` if it was lost before."""
        keys = [self._topic.keys.lease(self._group, lease.partition)]
        released: int = self._topic.run(
            "release_lease", keys, lease.owner, lease.epoch, self.now, group=self._group
        )
        return released == 1

    def heartbeat(self, member: str, ttl_ms: int) -> list[str]:
        """Say that a member of the group lives, and hear who else does; `ttl_ms` 0 leaves the group."""
        keys = [self._topic.keys.members(self._group)]
        members = self._topic.run("heartbeat", keys, member, ttl_ms, self.now, group=self._group)
        return [name.decode() for name in members]
