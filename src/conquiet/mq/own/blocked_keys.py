"""Strict order: while a message waits for its retry, later ones of the same key are parked behind it."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from conquiet.mq.envelope import MqMessage
from conquiet.queue.message import entry_id_order

_Order = tuple[int, int]

#: What stays in memory of one partition's parked messages; of what is more, the stream has the content.
_KEPT_BYTES = 256 << 10


@dataclass(slots=True)
class _BlockedKey:
    """One key: its messages that wait for their retry (its heads), and those parked behind, in order."""

    heads: set[_Order] = field(default_factory=set)
    parked: list[MqMessage] = field(default_factory=list)


class BlockedKeys:
    """The keys of one partition that cannot go on; pure, one thread."""

    def __init__(self) -> None:
        self._blocked_keys: dict[str, _BlockedKey] = {}
        #: Keys of the heads, by entry id.
        self._keys: dict[str, str] = {}
        #: How many messages are parked.
        self.size = 0
        #: Of those whose content is in memory.
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._blocked_keys)

    def __iter__(self) -> Iterator[MqMessage]:
        """All that is parked."""
        return (msg for line in self._blocked_keys.values() for msg in line.parked)

    @property
    def heads(self) -> list[str]:
        """The messages that others wait for."""
        return [*self._keys]

    def is_full(self, max_size: int) -> bool:
        """Whether so many are parked that no more should be read."""
        return self.size >= max_size

    def block(self, head_id: str, key: str | None) -> None:
        """A message waits for its retry: what comes after it with the same key is to be parked."""
        if key is not None:
            self._keys[head_id] = key
            self._blocked_keys.setdefault(key, _BlockedKey()).heads.add(entry_id_order(head_id))

    def park(self, msg: MqMessage) -> bool:
        """Park the message if an earlier one of its key waits, and return whether it did."""
        line = None if msg.key is None else self._blocked_keys.get(msg.key)
        if line is None or min(line.heads) > entry_id_order(msg.id):
            return False
        self._insert(line, self._kept(msg))
        return True

    def unblock_all(self, vanished: Iterable[str], heads: Iterable[MqMessage]) -> list[MqMessage]:
        """What may be handled now: behind messages that vanished, and these with what was behind them."""
        freed = [msg for entry_id in vanished for msg in self.unblock(entry_id)]
        return freed + [msg for head in heads for msg in self.unblock(head.id, head)]

    def unblock(self, head_id: str, head: MqMessage | None = None) -> list[MqMessage]:
        """The messages that can go on, in order, now that the retry of a head is due, or it vanished."""
        key = self._keys.pop(head_id, None)
        if key is None:
            return [] if head is None else [head]
        line = self._blocked_keys[key]
        line.heads.discard(entry_id_order(head_id))
        if head is not None:
            waits_on = bool(line.heads) and min(line.heads) < entry_id_order(head_id)
            self._insert(line, self._kept(head) if waits_on else head)
        if line.heads:
            first = min(line.heads)
            freed = [msg for msg in line.parked if _order(msg) < first]
            line.parked = line.parked[len(freed) :]
        else:
            freed = self._blocked_keys.pop(key).parked
        self.size -= len(freed)
        self._bytes -= sum(len(msg.data) for msg in freed)
        return freed

    def _kept(self, msg: MqMessage) -> MqMessage:
        return msg if self._bytes + len(msg.data) <= _KEPT_BYTES else msg.unloaded()

    def _insert(self, line: _BlockedKey, msg: MqMessage) -> None:
        before = len(line.parked)
        if before and _order(line.parked[-1]) >= _order(msg):
            # Delivered anew, as after a reset of the group, it takes the place of its earlier delivery.
            self._bytes -= sum(len(parked.data) for parked in line.parked if parked.id == msg.id)
            line.parked = [parked for parked in line.parked if parked.id != msg.id]
        insort(line.parked, msg, key=_order)
        self._bytes += len(msg.data)
        self.size += len(line.parked) - before


def _order(msg: MqMessage) -> _Order:
    return entry_id_order(msg.id)
