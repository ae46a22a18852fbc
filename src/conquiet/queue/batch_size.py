"""BatchSize: how many messages one read asks for, bounded by their bytes and by the time they take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from conquiet.errors import MalformedEntry


class _Sized(Protocol):
    @property
    def data(self) -> bytes: ...


class _Batch(Protocol):
    @property
    def messages(self) -> Sequence[_Sized]: ...

    @property
    def malformed(self) -> Sequence[MalformedEntry]: ...


#: What one read brings, at about the most: so much is in memory twice, as bytes and as payloads. The server
#: counts bytes as it reads, and stops within a few messages of it; those that came tell how many the next
#: read asks for.
BATCH_BYTES = 8 << 20

#: Of a first read, since the size of messages is not known yet, and of what was delivered before.
FEW_MESSAGES = 10


class BatchSize:
    """The size of the next batch of a stream; pure.

    After a quick batch the next one may be twice as large, after a slow one half as large: a slow handler
    must not make many messages wait.
    """

    def __init__(self, largest: int, *, adapts: bool = True) -> None:
        self._largest = largest
        self._adapts = adapts
        self._by_speed = min(FEW_MESSAGES, largest) if adapts else largest
        #: Of the largest message lately.
        self._bytes = 1

    @property
    def next(self) -> int:
        """How many messages to ask for."""
        return max(1, min(self._by_speed, BATCH_BYTES // self._bytes))

    def learn(self, batch: _Batch) -> None:
        """A read has brought these."""
        if not self._adapts:
            return
        sizes = [len(msg.data) for msg in batch.messages]
        sizes += [sum(len(value) for _, value in entry.fields) for entry in batch.malformed]
        self.learn_bytes(sizes)

    def learn_bytes(self, sizes: Sequence[int]) -> None:
        """A read has brought entries of these sizes."""
        if sizes:
            # A large one is remembered for some batches: others may follow.
            self._bytes = max(1, *sizes, self._bytes // 2)

    def took(self, seconds: float) -> None:
        """Handling a full batch has taken so long."""
        if not self._adapts:
            return
        if seconds < 0.25:
            self._by_speed = min(self._by_speed * 2, self._largest)
        elif seconds > 1:
            self._by_speed = max(self._by_speed // 2, 1)
