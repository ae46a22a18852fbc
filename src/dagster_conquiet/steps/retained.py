"""RetainedChannel: what a stream still has of a time window or of some keys, read again by no group."""

from __future__ import annotations

import logging
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from conquiet.consume.channel import KeyOf, described_entry
from conquiet.consume.outcome import Ack, Outcome, Settlement, Skipped
from conquiet.consume.report import Elsewhere
from conquiet.errors import MalformedEntry, MalformedEntryError, MessageRejectedError
from conquiet.payload import decode_payload
from conquiet.queue import Client, QueueMessage
from conquiet.queue.connection import AS_BYTES, visible_errors
from conquiet.queue.message import Delivery, delivery_of
from conquiet.queue.pages import EntryPages
from conquiet.queue.steps import run_steps
from conquiet.tracing import Where

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retained:
    """Which entries of a stream: of a time, of some keys."""

    #: By the milliseconds in their ids; `None` is the first entry, and the last.
    start_ms: int | None = None
    #: Not included.
    end_ms: int | None = None
    #: The key of the Dagster partition that a message belongs to; `None` if it is none of those in question.
    partition_of: Callable[[QueueMessage], str | None] = lambda _msg: ""

    @property
    def ids(self) -> tuple[str, str]:
        """The bounds of a range of entry ids."""
        first = "-" if self.start_ms is None else f"{self.start_ms}-0"
        return first, "+" if self.end_ms is None else f"({self.end_ms}-0"


class RetainedChannel:
    """Delivers each entry once, in order; settles nothing, since nothing is pending.

    A message that fails is counted and fails the step; its retry skips, by the inbox, what was committed.
    """

    max_outage_s = 0.0
    max_outages_of_message = 0
    #: Large entries are read a few at a time.
    is_shared = True
    can_settle = True
    key_of: KeyOf | None = None

    def __init__(self, client: Client, stream: str, work: str, retained: Retained) -> None:
        self._client = client
        self._work = work
        self._retained = retained
        first, last = retained.ids
        self._pages = EntryPages(stream, first=first, last=last)
        self.stream = stream
        self.where = Where(destination=stream, group=work)
        self.is_caught_up = False
        self.claimed_by_others = 0
        self.elsewhere = Elsewhere()
        #: What became of the messages, by the keys of their Dagster partitions.
        self.outcomes: dict[str, Counter[str]] = defaultdict(Counter)
        self._lock = threading.Lock()

    def read(self, settlements: Sequence[Settlement], size: int, _wait_ms: int | None) -> Delivery | None:
        """The next page; `None` behind the last one."""
        self.settle(settlements)
        call = partial(self._client.execute_command, **AS_BYTES)
        while not self._pages.is_end:
            with visible_errors("XRANGE", stream=self.stream, group=None):
                entries = run_steps(call, self._pages.next(size))
            delivery = delivery_of(((entry, 1) for entry in entries), stream=self.stream, group=self._work)
            wanted = [msg for msg in delivery.messages if self._retained.partition_of(msg) is not None]
            if wanted or delivery.malformed:
                return Delivery(wanted, delivery.malformed)
        self.is_caught_up = True
        return None

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """Nothing is pending."""
        for settlement in settlements:
            settlement.is_done = True

    def next_message(self, queued: deque[QueueMessage]) -> QueueMessage | None:
        return queued.popleft() if queued else None

    def set_aside(self, _msg: QueueMessage) -> None:
        """Nothing is kept back."""

    def take_back(self, msg: QueueMessage) -> Sequence[QueueMessage]:
        """The message alone."""
        return (msg,)

    def begin(self, _msg: QueueMessage) -> Settlement | None:
        return None

    def settlement_without_handler(self, _msg: QueueMessage) -> Settlement | None:
        return None

    def decide(self, msg: QueueMessage, result: Outcome | Exception, _seconds: float) -> Settlement:
        """Done, or failed: there is nothing that could be retried later."""
        if isinstance(result, Ack | Skipped):
            outcome = "handled" if isinstance(result, Ack) else "skipped"
            self._count(msg, outcome)
            return Settlement("ack", msg.id, 1, outcome=outcome)
        self._count(msg, "failed")
        if not isinstance(result, Exception):
            result = MessageRejectedError(msg.id, stream=self.stream, answer=result)
        return Settlement("leave", msg.id, 1, outcome="failed", error=result)

    def _count(self, msg: QueueMessage, outcome: str) -> None:
        # As it was read: the handler may have changed its payload, which may be an object of a type, too.
        partition = self._retained.partition_of(self.as_delivered(msg))
        with self._lock:
            self.outcomes[partition or ""][outcome] += 1

    def decide_malformed(self, entry: MalformedEntry) -> Settlement:
        """Failed."""
        place = {"stream": self.stream, "group": self._work}
        error = MalformedEntryError("read again", **place, entries=[entry], messages=())
        return Settlement("leave", entry.id, 1, outcome="failed", error=error)

    def hand_back(self, queued: Sequence[QueueMessage]) -> int:
        """What was not begun is read again by the next materialisation."""
        return len(queued)

    def as_delivered(self, msg: QueueMessage) -> QueueMessage:
        return replace(msg, payload=decode_payload(msg.data))

    def described(self, delivered: QueueMessage | MalformedEntry) -> tuple[str, int]:
        return described_entry(delivered, self)

    def __str__(self) -> str:
        return f"stream {self.stream!r} from {self._retained.ids[0]} to {self._retained.ids[1]}"

    def count_unavailable(self, _messages: int) -> None:
        """An outage of the database ends the step."""
