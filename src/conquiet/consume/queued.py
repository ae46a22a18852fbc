"""Queued: what was read and has not begun, and which of it may begin now."""

from __future__ import annotations

from collections import deque
from typing import Generic

from conquiet.consume.channel import Channel, M
from conquiet.consume.order import Order
from conquiet.consume.outcome import Settlement
from conquiet.consume.unsettled import Unsettled


class Queued(Generic[M]):
    """The messages of one loop before their handler; only its thread calls it."""

    def __init__(self, channel: Channel[M], unsettled: Unsettled, order: Order[M], alone: set[str]) -> None:
        self._channel = channel
        self._unsettled = unsettled
        self._order = order
        #: Entry ids of messages to be handled in no batch and with none beside them.
        self._alone = alone
        self.messages: deque[M] = deque()

    def bring_forward(self, in_handlers: int) -> bool:
        """Whether a message may begin beside so many others; then it is the first one now."""
        messages = self.messages
        return self._order.bring_forward(messages) and not (in_handlers and messages[0].id in self._alone)

    def take(self, most: int, in_handlers: int) -> list[M]:
        """Begin the next message, or up to so many for one transaction; none if the first has to wait."""
        taken: list[M] = []
        begins: list[Settlement] = []
        try:
            while self.messages and len(taken) < most:
                if taken and (taken[0].id in self._alone or not self.bring_forward(len(taken))):
                    break
                msg = self._channel.next_message(self.messages)
                if msg is None:
                    break
                # It may be another one than the first: one that the channel kept back, or that others took.
                if (taken or in_handlers) and (msg.id in self._alone or not self._order.may_begin(msg)):
                    self.messages.appendleft(msg)
                    break
                taken.append(msg)
                begin = self._channel.begin(msg)
                if begin is not None:
                    begins.append(begin)
                    self._unsettled.add(begin)
            if not begins:
                return taken
            # With those before it: they are settled if this one kills the process.
            self._unsettled.settle()
        except BaseException:
            self.messages.extendleft(reversed(taken))
            raise
        refused = {begin.entry_id for begin in begins if begin.is_refused}
        return [msg for msg in taken if msg.id not in refused]
