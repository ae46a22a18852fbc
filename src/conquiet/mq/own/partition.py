"""LeasedPartition: everything that an owner reads or settles in its partition is fenced by its lease."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from conquiet.consume.outcome import Settlement
from conquiet.errors import LeaseLostError, QueueError
from conquiet.logs import message_fields
from conquiet.mq.envelope import MqMessage
from conquiet.mq.own.entries import Batch, PartitionEntries
from conquiet.mq.own.leases import Lease, LeaseStore
from conquiet.mq.scripts import run_script
from conquiet.mq.topics import Topic
from conquiet.queue.batch_size import BATCH_BYTES
from conquiet.queue.connection import as_text
from conquiet.queue.scripts import create_group
from conquiet.tracing import Where


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """Entries whose retry is due."""

    batch: Batch
    #: Entries that waited, but were acked by others or are no longer in the stream.
    vanished: list[str]
    #: In how many ms the next one will be due, `None` if none waits.
    next_due_ms: int | None
    #: What waited and is no entry's id; it waits for another minute.
    unknown: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOver:
    """One page of what the partition's earlier owners left."""

    batch: Batch
    #: Entries that wait for their retry.
    waiting: list[str]
    #: Entries that were pending, but are no longer in the stream.
    vanished: list[str]
    #: Where the next page begins, `None` at the end.
    after: str | None


class LeasedPartition:
    """One partition, one group, one lease; lives as long as the lease is held.

    Raises:
        LeaseLostError: of every method, if the lease is no longer held; then nothing was read or changed.
        QueueError: Redis failed, or a reply was lost; what it may have delivered is for `take_over` of a new
            `LeasedPartition`.
    """

    def __init__(self, topic: Topic, group: str, lease: Lease, leases: LeaseStore) -> None:
        self.topic = topic
        self.group = group
        self.lease = lease
        self._leases = leases
        keys, place = topic.keys, (group, lease.partition)
        self.stream = keys.stream(lease.partition)
        self._entries = PartitionEntries(topic, group, lease.partition)
        self._own_keys = [keys.lease(*place), self.stream, keys.waiting(*place), keys.failures(*place)]
        self._settle_keys = [
            *self._own_keys,
            keys.dead_letters(lease.partition),
            keys.delayed(lease.partition),
            keys.delayed_items(lease.partition),
        ]
        #: Of every metric of this partition.
        self.labels = (topic.name, str(lease.partition), group)
        #: Of every span.
        self.where = Where(
            destination=topic.name, group=group, consumer=lease.owner, partition=lease.partition
        )
        #: Whether calls can still succeed: not after a lost lease, or a reply that was lost.
        self.is_usable = True
        #: Counts the calls that changed something, as the lease does on the server.
        self._turn = 0

    @property
    def partition(self) -> int:
        """Its number."""
        return self.lease.partition

    def create_group(self) -> None:
        """Create the group at the stream's beginning, unless it is there."""
        # A topic has its streams: one that is missing was deleted, and must not come back.
        with self.topic.visible("XGROUP CREATE", group=self.group):
            create_group(self.topic.client, self.stream, self.group, create_stream=self._entries.is_bare)

    def take_over(
        self,
        after: str | None,
        count: int,
        min_idle_ms: int | None = None,
        in_flight: Iterable[str] = (),
        *,
        max_bytes: int = BATCH_BYTES,
    ) -> TakeOver:
        """Take one page of the pending entries, oldest first; each is counted when it begins.

        Args:
            min_idle_ms: take only what was not touched for so long, and is not in flight here.
            max_bytes: no further one after so many.
        """
        start = "-" if after is None else f"({after}"
        idle = ("",) if min_idle_ms is None else (min_idle_ms, *in_flight)
        last, entries, waiting, vanished = self._fenced("take_over", start, count, max_bytes, *idle)
        self._turn += bool(entries or vanished)
        return TakeOver(
            batch=self._entries.batch(entries, is_taken=True),
            waiting=_texts(waiting),
            vanished=_texts(vanished),
            after=last.decode() or None,
        )

    def take_due(self, count: int, *, max_bytes: int = BATCH_BYTES) -> Due:
        """Take entries whose retry is due, no further one after so many bytes; counted when they begin."""
        entries, next_due_ms, vanished, unknown = self._fenced("take_due", count, max_bytes)
        self._turn += bool(entries or vanished)
        return Due(
            batch=self._entries.batch(entries, is_taken=True),
            vanished=_texts(vanished),
            next_due_ms=None if next_due_ms < 0 else next_due_ms,
            unknown=_texts(unknown),
        )

    def settle_and_read(
        self, settlements: Sequence[Settlement], count: int, *, max_bytes: int = BATCH_BYTES
    ) -> tuple[list[bool], Batch]:
        """Settle, then read up to `count` new messages, in one script; returns which had effect."""
        # Nearly all of them are acks of a first delivery: an id alone costs a fifth of what the others do.
        once: list[str] = []
        others: list[Any] = []
        for settlement in settlements:
            if _is_once(settlement):
                once.append(settlement.entry_id)
            else:
                others += (settlement.kind, settlement.entry_id, settlement.delivery_count)
                others += (settlement.first, settlement.second)
        arguments = (count, max_bytes, len(once), *once, *others)
        reply, entries, last, too_large = self._fenced("settle_and_read", *arguments, keys=self._settle_keys)
        self._turn += bool(settlements or entries)
        batch = self._entries.batch([(*entry, 1, b"") for entry in entries], last.decode())
        batch.unloaded.extend(self._entries.unloaded(entry_id.decode()) for entry_id in too_large)
        return _effects(settlements, reply), batch

    def load(self, msg: MqMessage) -> Batch:
        """A message again whose content is not in memory; nothing if the stream has it no more."""
        entries = self.topic.call("XRANGE", self.stream, msg.id, msg.id, group=self.group)
        is_taken = not msg.is_counted
        facts = (msg.delivery_count - is_taken, msg.failure)
        return self._entries.batch([(*entry, *facts) for entry in entries], is_taken=is_taken)

    def find_gone(self, entry_ids: Sequence[str]) -> list[str]:
        """Which of these neither wait for their retry nor are pending at anybody."""
        gone: list[str] = []
        for start in range(0, len(entry_ids), 500):
            (found,) = self._fenced("find_gone", *entry_ids[start : start + 500])
            gone += _texts(found)
        return gone

    def keys_of(self, entry_ids: Sequence[str]) -> list[str | None]:
        """The message keys of entries, `None` for one without or that is no longer in the stream."""
        found = []
        for entry_id in entry_ids:
            entries = self.topic.call("XRANGE", self.stream, entry_id, entry_id, group=self.group)
            batch = self._entries.batch([(*entry, 1, b"") for entry in entries])
            found.append(batch.messages[0].key if batch.messages else None)
        return found

    def _fenced(self, script: str, *arguments: Any, keys: list[str] | None = None) -> Any:
        fence = (self.lease.owner, self.lease.epoch, self._leases.now, self.group, self._turn)
        seal = (self._own_keys[0], self.lease.epoch, self._turn)
        keys = keys or self._own_keys
        usable, self.is_usable = self.is_usable, False
        state, *reply = run_script(
            self.topic, script, keys, (*fence, *arguments), seal=seal, group=self.group
        )
        if state == b"lost":
            raise self.lost()
        if state == b"repeated":
            reason = (
                "the client sent a call again whose reply was lost; what that delivered is taken over anew"
            )
            raise QueueError(script, stream=self.stream, group=self.group, reason=reason)
        self.is_usable = usable
        return reply

    def lost(self) -> LeaseLostError:
        """The error that says that this lease is gone."""
        return LeaseLostError(
            topic=self.topic.name,
            group=self.group,
            partition=self.partition,
            owner=self.lease.owner,
            epoch=self.lease.epoch,
        )

    def __str__(self) -> str:
        return f"partition {self.partition} of topic {self.topic.name!r} for group {self.group!r}"

    def extra(self, **facts: Any) -> dict[str, Any]:
        """The `extra` of a log line about this partition."""
        topic, _, group = self.labels
        place = {"topic": topic, "stream": self.stream, "partition": self.partition, "group": group}
        return message_fields(**place, consumer=self.lease.owner, **facts)


def _is_once(settlement: Settlement) -> bool:
    return settlement.kind == "ack" and settlement.delivery_count == 1


def _effects(settlements: Sequence[Settlement], refused: Sequence[int]) -> list[bool]:
    effects = [True] * len(settlements)
    if refused:
        # By number and not by id: of two settlements of one entry, one has had its effect.
        order = sorted(range(len(settlements)), key=lambda number: not _is_once(settlements[number]))
        for number in refused:
            effects[order[number]] = False
    return effects


def _texts(values: Sequence[bytes]) -> list[str]:
    return [as_text(value) for value in values]
