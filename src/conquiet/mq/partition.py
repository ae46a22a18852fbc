"""A partition in the hands of its owner: everything it reads or settles is fenced by its lease."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import ResponseError

from conquiet.errors import LeaseLostError, MalformedEntry, QueueError
from conquiet.mq.envelope import Envelope, MqMessage, check_envelope
from conquiet.mq.leases import Lease, LeaseStore
from conquiet.mq.settlement import Settlement
from conquiet.mq.topics import Topic
from conquiet.queue import QueueMessage
from conquiet.queue.message import delivery_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one read of a partition delivered."""

    messages: list[MqMessage] = field(default_factory=list)
    malformed: list[MalformedEntry] = field(default_factory=list)
    #: What Redis kept of earlier failures, by entry id.
    failures: dict[str, bytes] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.messages or self.malformed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """Entries whose retry is due."""

    batch: Batch
    #: Entries that waited, but somebody acked them or the stream no longer has them.
    gone: list[str]
    #: In how many ms the next one will be due, `None` if none waits.
    next_due_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOver:
    """One page of what the partition's earlier owners left."""

    batch: Batch
    #: Entries that wait for their retry.
    waiting: list[str]
    #: Entries that were pending, but the stream no longer has them.
    gone: list[str]
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
        self._stream = topic.keys.stream(lease.partition)
        #: Counts the calls that changed something, as the lease does on the server.
        self._turn = 0

    @property
    def partition(self) -> int:
        """Its number."""
        return self.lease.partition

    def create_group(self) -> None:
        """Create the group at the stream's beginning, unless it is there."""
        with self.topic.visible("XGROUP CREATE", group=self.group):
            try:
                self.topic.client.xgroup_create(self._stream, self.group, "0-0", mkstream=True)
            except ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):
                    raise

    def take_over(self, after: str | None, count: int) -> TakeOver:
        """Take one page of the pending entries, oldest first; one that was delivered before comes alone."""
        start = "-" if after is None else f"({after}"
        last, entries, waiting, gone = self._fenced("take_over", start, count)
        self._turn += bool(entries or gone)
        return TakeOver(
            batch=self._batch(entries),
            waiting=_texts(waiting),
            gone=_texts(gone),
            after=last.decode() or None,
        )

    def take_due(self, count: int) -> Due:
        """Take entries whose retry is due."""
        entries, next_due_ms, gone = self._fenced("take_due", count)
        self._turn += bool(entries or gone)
        return Due(
            batch=self._batch(entries),
            gone=_texts(gone),
            next_due_ms=None if next_due_ms < 0 else next_due_ms,
        )

    def settle_and_read(self, settlements: Sequence[Settlement], count: int) -> tuple[list[bool], Batch]:
        """Settle, then read up to `count` new messages, in one script; tells which settlements had effect."""
        flat: list[Any] = []
        for settlement in settlements:
            flat += (settlement.kind, settlement.entry_id, settlement.delivery_count)
            flat += (settlement.first, settlement.second)
        keys = self.topic.keys
        more_keys = [keys.dead_letters(self.partition), keys.delayed(self.partition)]
        more_keys.append(keys.delayed_items(self.partition))
        settled, entries = self._fenced("settle_and_read", count, *flat, more_keys=more_keys)
        self._turn += bool(settled or entries)
        return [took_effect == 1 for took_effect in settled], self._batch(
            [(*entry, 1, b"") for entry in entries]
        )

    def wait_for_new(self, last_seen: str, block_ms: int) -> None:
        """Wait until the stream has an entry behind `last_seen`; reads nothing."""
        self.topic.call(
            "XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", self._stream, last_seen, group=self.group
        )

    def last_delivered(self) -> str:
        """The last entry that the group was given."""
        with self.topic.visible("XINFO GROUPS", group=self.group):
            infos = self.topic.client.xinfo_groups(self._stream)
        for info in infos:
            if _text(info["name"]) == self.group:
                return _text(info["last-delivered-id"])
        return "0-0"

    def keys_of(self, entry_ids: Sequence[str]) -> list[str | None]:
        """The message keys of entries, `None` for one without or that is gone."""
        found = []
        for entry_id in entry_ids:
            entries = self.topic.call("XRANGE", self._stream, entry_id, entry_id, group=self.group)
            delivery = delivery_of([(entry, 1) for entry in entries], stream=self._stream, group=self.group)
            envelopes = [
                Envelope.of(msg.payload, topic=self.topic.name, partition=self.partition)
                for msg in delivery.messages
            ]
            found.append(envelopes[0].key if envelopes else None)
        return found

    def _fenced(self, script: str, *arguments: Any, more_keys: Sequence[str] = ()) -> Any:
        keys, place = self.topic.keys, (self.group, self.partition)
        own = [keys.lease(*place), self._stream, keys.waiting(*place), keys.failures(*place)]
        fence = (self.lease.owner, self.lease.epoch, self._leases.now, self.group, self._turn)
        reply = self.topic.run(script, [*own, *more_keys], *fence, *arguments, group=self.group)
        if reply is None:
            raise self.lost()
        if reply == 0:
            reason = "the client sent a call again whose reply was lost; what that delivered is taken up anew"
            raise QueueError(script, stream=self._stream, group=self.group, reason=reason)
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

    def _batch(self, entries: Sequence[Sequence[Any]]) -> Batch:
        pairs = [((entry_id, fields), count) for entry_id, fields, count, _ in entries]
        delivery = delivery_of(pairs, stream=self._stream, group=self.group)
        data_of = {entry_id: fields[1] for entry_id, fields, _, _ in entries}
        batch = Batch(
            malformed=delivery.malformed,
            failures={entry_id.decode(): failure for entry_id, _, _, failure in entries if failure},
        )
        for msg in delivery.messages:
            data = data_of[msg.id.encode()]
            try:
                batch.messages.append(self._message(msg, data))
            except ValueError as error:
                malformed = MalformedEntry(msg.id, ((b"data", data),), msg.delivery_count, str(error))
                batch.malformed.append(malformed)
        return batch

    def _message(self, msg: QueueMessage, data: bytes) -> MqMessage:
        check_envelope(msg.payload)
        envelope = Envelope.of(msg.payload, topic=self.topic.name, partition=self.partition)
        return MqMessage(
            topic=self.topic.name,
            group=self.group,
            partition=self.partition,
            id=msg.id,
            attempt=envelope.attempt + msg.delivery_count,
            envelope=envelope,
            delivery_count=msg.delivery_count,
            source=msg,
            data=data,
        )


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _texts(values: Sequence[bytes]) -> list[str]:
    return [value.decode() for value in values]
