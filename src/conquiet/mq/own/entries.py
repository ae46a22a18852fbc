"""Entries of a partition as messages, and a batch of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from conquiet.errors import MalformedEntry
from conquiet.mq.envelope import Envelope, LaterVersionError, MessageDraft, MqMessage, check_envelope
from conquiet.mq.topics import Topic
from conquiet.payload import decode_payload
from conquiet.queue.message import data_of, pairs_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one read of a partition delivered."""

    messages: list[MqMessage] = field(default_factory=list)
    malformed: list[MalformedEntry] = field(default_factory=list)
    #: Of a read that found nothing new: the last entry that the group was given.
    last_delivered: str = ""
    #: Further entries, delivered too, for which there was no room: their content is to be loaded.
    unloaded: list[MqMessage] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.messages or self.malformed)

    @property
    def sizes(self) -> list[int]:
        """The bytes of each message and malformed entry."""
        sizes = [len(msg.data) for msg in self.messages]
        return sizes + [sum(len(value) for _, value in entry.fields) for entry in self.malformed]


class PartitionEntries:
    """Makes messages of the entries of one partition, for one group."""

    def __init__(self, topic: Topic, group: str, partition: int) -> None:
        self._topic, self._group, self._partition = topic.name, group, partition
        self._stream = topic.keys.stream(partition)
        self.is_bare = topic.layout == "bare_stream"

    def batch(
        self, entries: Sequence[Sequence[Any]], last_delivered: str = "", *, is_taken: bool = False
    ) -> Batch:
        """What these entries are: their ids, fields, delivery counts and remembered failures.

        Args:
            is_taken: they were not delivered now; Redis counts that when they begin.
        """
        topic, group, partition, is_bare = self._topic, self._group, self._partition, self.is_bare
        bare_stream = topic if is_bare else None
        batch = Batch(last_delivered=last_delivered)
        for raw_id, fields, count, failure in entries:
            entry_id = raw_id.decode()
            try:
                data = data_of(fields)
                payload = decode_payload(data)
                check_envelope(payload, bare_stream=bare_stream)
            except ValueError as error:
                # Redis has counted a new delivery; what is taken over is counted when it begins.
                returned = count - (not is_taken) if isinstance(error, LaterVersionError) else None
                batch.malformed.append(
                    MalformedEntry(entry_id, pairs_of(fields), count, str(error), hand_back_count=returned)
                )
                continue
            if is_taken:
                # As it will be when it has begun.
                count += 1
            envelope = Envelope.of(payload, topic=topic, partition=partition, is_bare=is_bare)
            draft: Any = MessageDraft(
                topic=topic,
                group=group,
                partition=partition,
                id=entry_id,
                attempt=envelope.attempt + count,
                envelope=envelope,
                delivery_count=count,
                stream=self._stream,
                data=data,
                failure=failure,
                is_counted=not is_taken,
                sent_ms=envelope.timestamp_ms,
                sent_id=envelope.id,
            )
            draft.__class__ = MqMessage
            batch.messages.append(draft)
        return batch

    def unloaded(self, entry_id: str) -> MqMessage:
        """A message that was delivered, without its content."""
        topic, partition = self._topic, self._partition
        return MqMessage(
            topic=topic,
            group=self._group,
            partition=partition,
            id=entry_id,
            attempt=1,
            envelope=Envelope(topic=topic, partition=partition, payload={}),
            delivery_count=1,
            stream=self._stream,
        )
