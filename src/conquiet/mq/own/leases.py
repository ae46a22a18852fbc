"""Leases: one owner per partition and group, with an epoch that rises whenever a partition is acquired."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from conquiet.errors import TopicError
from conquiet.mq.scripts import run_script
from conquiet.mq.topics import Topic, Topics, limit_of
from conquiet.queue.connection import as_text


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to read and settle one partition, for as long as it is renewed."""

    partition: int
    owner: str
    epoch: int


class LeaseStore:
    """Acquires, renews and releases the leases of one group; each is one script on the server.

    A lease is eligible to be acquired if
    - it has no owner,
    - or it has expired by the server's clock,
    - or the same store acquired it before for the same owner and did not see the reply,
    - or the caller knows that its owner is dead, and replaces it.
    Only the owner of a lease that has not expired, in the same epoch, renews, releases or settles; each time
    that a lease is acquired a new epoch begins. Two stores are never one owner, whatever their names are.

    Raises:
        TopicError: of the constructor, for a plain stream whose name leaves no slot for its lease.
    """

    def __init__(self, topic: Topic, group: str, *, now_ms: Callable[[], int] | None = None) -> None:
        if not topic.keys.has_one_slot:
            raise TopicError(
                topic.name,
                "cannot be consumed on a cluster: for a name with such braces no other key shares its slot; "
                "rename the stream, or create a topic",
            )
        self._topic = topic
        self._group = group
        self._now_ms = now_ms
        self._instance = uuid.uuid4().hex

    @property
    def now(self) -> int | str:
        """The time to pass to scripts: empty for the server's own."""
        return "" if self._now_ms is None else self._now_ms()

    def acquire(
        self, partition: int, owner: str, ttl_ms: int, *, replaces: Sequence[str] = ()
    ) -> Lease | None:
        """The lease, or `None` if another consumer has it who is not one of those to be replaced.

        Raises:
            TopicError: the topic was deleted.
        """
        keys = [
            self._topic.keys.lease(self._group, partition),
            self._topic.keys.epoch(self._group, partition),
            self._topic.keys.groups(partition),
        ]
        if self._topic.layout != "bare_stream":
            keys.append(self._topic.keys.stream(partition))
        for _ in range(2):
            arguments = (owner, ttl_ms, self.now, self._group, self._instance, *replaces)
            seal = (keys[0], self._instance)
            (epoch,) = run_script(self._topic, "acquire_lease", keys, arguments, seal=seal, group=self._group)
            if epoch != b"no stream":
                return None if epoch is None else Lease(partition, owner, epoch)
            Topics(self._topic.client).restore(self._topic)
        raise TopicError(self._topic.name, "was deleted since it was opened")

    def renew(self, lease: Lease, ttl_ms: int, in_flight: Iterable[tuple[str, int]] = ()) -> bool:
        """Extend the lease and keep messages (entry id, delivery count) alive; `False` if it is lost."""
        keys = self._topic.keys
        flat = [part for message in in_flight for part in message]
        own = [keys.lease(self._group, lease.partition), keys.stream(lease.partition)]
        return self._change("renew_lease", lease, own, ttl_ms, self._group, *flat)

    def release(self, lease: Lease) -> bool:
        """Release the lease; `False` if it was lost before."""
        keys = self._topic.keys
        own = [keys.lease(self._group, lease.partition), keys.stream(lease.partition)]
        return self._change("release_lease", lease, own, self._group)

    def heartbeat(self, member: str, ttl_ms: int, max_partitions: int | None = None) -> dict[str, int | None]:
        """Renew a membership in the group; `ttl_ms` 0 leaves the group.

        Returns the live members, each with the most partitions that it may own, `None` for any number.
        """
        keys = [self._topic.keys.members(self._group), self._topic.keys.member_limits(self._group)]
        arguments = (member, ttl_ms, self.now, "" if max_partitions is None else max_partitions)
        seal = (keys[0], member)
        names, pairs = run_script(self._topic, "heartbeat", keys, arguments, seal=seal, group=self._group)
        limits = dict(zip(pairs[::2], pairs[1::2], strict=True))
        return {as_text(name): limit_of(limits.get(name)) for name in names}

    def _change(self, script: str, lease: Lease, keys: list[str], *more: str | int) -> bool:
        arguments, seal = (lease.owner, lease.epoch, self.now, *more), (keys[0], lease.epoch)
        (is_changed,) = run_script(self._topic, script, keys, arguments, seal=seal, group=self._group)
        return bool(is_changed == 1)
