"""Unloaded: messages of an owned partition that were delivered, and whose content only the stream has."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from conquiet.mq.envelope import MqMessage
from conquiet.mq.own.entries import Batch
from conquiet.mq.own.partition import LeasedPartition
from conquiet.mq.own.take_overs import log_vanished


class Unloaded:
    """They came when there was no room for them, in their order; lives as long as the lease, one thread."""

    def __init__(self, partition: LeasedPartition, in_flight: dict[str, int]) -> None:
        self._partition = partition
        self._in_flight = in_flight
        self._messages: deque[MqMessage] = deque()

    def __bool__(self) -> bool:
        return bool(self._messages)

    def __iter__(self) -> Iterator[MqMessage]:
        return iter(self._messages)

    def add(self, messages: Iterable[MqMessage]) -> None:
        """They are for the next reads."""
        self._messages.extend(messages)

    def add_rest(self, batch: Batch) -> Batch:
        """The batch up to its first message that is not loaded; the others are for the next reads."""
        messages = batch.messages
        loaded = next((number for number, msg in enumerate(messages) if not msg.is_loaded), len(messages))
        self.add(messages[loaded:])
        return replace(batch, messages=messages[:loaded])

    def load(self, size: int, max_bytes: int) -> Batch:
        """The next ones, no further one after so many bytes."""
        batch = Batch()
        try:
            while self._messages and len(batch.messages) < size and sum(batch.sizes) < max_bytes:
                msg = self._messages[0]
                entry = Batch(messages=[msg]) if msg.is_loaded else self._entry(msg)
                self._messages.popleft()
                batch.messages.extend(entry.messages)
                batch.malformed.extend(entry.malformed)
        except BaseException:
            # They are handed back, with all that was not loaded.
            self._messages.extendleft(reversed(batch.messages))
            raise
        return batch

    def load_one(self, msg: MqMessage) -> MqMessage | None:
        """A message with its content, `None` if the stream has it no more."""
        messages = self._entry(msg).messages
        return messages[0] if messages else None

    def _entry(self, msg: MqMessage) -> Batch:
        entry = self._partition.load(msg)
        if not entry:
            # What is pending of it is removed by the next look at what is pending.
            self._in_flight.pop(msg.id, None)
            log_vanished(self._partition, [msg.id])
        return entry
