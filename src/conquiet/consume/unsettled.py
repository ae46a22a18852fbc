"""Unsettled: what was decided of messages and is not settled yet."""

from __future__ import annotations

import time
from operator import attrgetter
from typing import Any

from conquiet.consume.channel import Channel
from conquiet.consume.outcome import Settlement
from conquiet.consume.spans import Spans
from conquiet.consume.tally import Tally

#: A handled message is settled within this time, or as soon as the handler that runs then has ended.
_SETTLE_WITHIN_S = 0.1
_IS_REFUSED = attrgetter("is_refused")


class Unsettled:
    """The settlements of one loop between two calls of its channel; one thread."""

    def __init__(self, channel: Channel[Any], spans: Spans, tally: Tally) -> None:
        self._channel = channel
        self._spans = spans
        self._tally = tally
        self._since = 0.0
        self._has_large = False
        self.settlements: list[Settlement] = []

    @property
    def are_overdue(self) -> bool:
        """Whether the first of them has waited for long enough, or one is large."""
        if not self.settlements:
            return False
        return self._has_large or time.monotonic() - self._since > _SETTLE_WITHIN_S

    def add(self, settlement: Settlement) -> None:
        """One more was decided."""
        if not self.settlements:
            self._since, self._has_large = time.monotonic(), False
        self._has_large = self._has_large or settlement.is_large
        self.settlements.append(settlement)

    def settle(self) -> None:
        """Settle all of them, in one call."""
        if self.settlements:
            started_ns = time.time_ns()
            try:
                self._channel.settle([one for one in self.settlements if not one.is_done])
            except Exception as error:
                self._spans.settled(self.settlements, started_ns, str(error))
                raise
            self.record(started_ns)

    def record(self, started_ns: int) -> None:
        """A call that began then has settled all of them."""
        settled, self.settlements = self.settlements, []
        for settlement in filter(_IS_REFUSED, settled):
            self._tally.refused(settlement)
        self._spans.settled(settled, started_ns)
        self._tally.settled(settled)
