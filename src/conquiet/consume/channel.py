"""Channel: the protocol by which the loop reads and settles messages, wherever they wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from conquiet.consume.outcome import Outcome, Settlement
from conquiet.consume.report import Elsewhere
from conquiet.db.inbox import Identified
from conquiet.errors import MalformedEntry
from conquiet.tracing import Where

if TYPE_CHECKING:
    from conquiet.consume.event_loop import EventLoop


class Message(Identified, Protocol):
    """One delivery of one message."""

    @property
    def payload(self) -> Any:
        """What was sent."""


class EntryMessage(Message, Protocol):
    """One that was read from a stream."""

    @property
    def data(self) -> bytes:
        """The bytes as they were read."""


M = TypeVar("M", bound=EntryMessage)
M_co = TypeVar("M_co", bound=EntryMessage, covariant=True)


#: The key of a message; `None` for one without.
KeyOf = Callable[[Any], Hashable]


class Batch(Protocol[M_co]):
    """What one read delivered; all of it is pending at this consumer now."""

    @property
    def messages(self) -> Sequence[M_co]:
        """In order."""

    @property
    def malformed(self) -> Sequence[MalformedEntry]:
        """Entries that cannot become messages."""


M_contra = TypeVar("M_contra", bound=EntryMessage, contravariant=True)


class Handling(Protocol[M_contra]):
    """What is done with one message, up to its commit; only one thread calls it."""

    @property
    def event_loop(self) -> EventLoop | None:
        """Where its handlers run; `None`: where they are called."""

    @property
    def takes_batches(self) -> bool:
        """Whether it handles a batch of messages in one transaction."""

    def handle(self, msg: M_contra, /) -> Outcome:
        """Handle and commit; whatever is raised, the message must stay pending."""

    def handle_batch(self, messages: Sequence[M_contra], /) -> Sequence[Outcome]:
        """Handle and commit all of them or none; whatever is raised, they must stay pending."""

    def for_another_thread(self) -> Handling[M_contra]:
        """The same with a connection of its own."""

    @property
    def has_inbox(self) -> bool:
        """Whether it asks the database what was handled before."""

    def has_handled(self, msg: M_contra, /) -> bool:
        """Whether the inbox has it from an earlier delivery."""

    def is_database_unavailable(self) -> bool:
        """Whether the database cannot be used now."""

    def release(self) -> None:
        """Give a kept connection back, as before a wait of unknown length."""

    def purge_inbox(self) -> None:
        """Take one step of the inbox's retention if it is time."""


class Channel(Protocol[M]):
    """Delivers messages and settles what became of them; lives as long as its owner may read.

    Only the loop's thread calls it.
    """

    #: Names of stream, group and consumer, for reports, logs and spans.
    where: Where
    #: The key of the stream.
    stream: str
    #: How long the database may be unavailable before the loop gives up; 0: not at all.
    max_outage_s: float
    #: During how many outages one message may be in its handler before it is the one at fault; 0: none.
    max_outages_of_message: int
    #: Whether the last read looked for new messages: only then does an empty batch mean that there are none.
    is_caught_up: bool
    #: Whether other consumers could take what waits here: then a read asks for as many as `BatchSize` says,
    #: few for a slow handler or large messages. One that is not shared bounds the bytes of a batch itself.
    is_shared: bool
    #: By which the order of messages is kept while several are handled at once; `None` if they have no keys.
    key_of: KeyOf | None
    #: Messages that were delivered and are another consumer's now, or were trimmed.
    claimed_by_others: int
    #: Of a shared channel, what other consumers had pending when the drain ended.
    elsewhere: Elsewhere

    @property
    def can_settle(self) -> bool:
        """Whether settling can still succeed; not after a lost lease, or a call whose reply was lost."""

    def read(self, settlements: Sequence[Settlement], size: int, wait_ms: int | None) -> Batch[M] | None:
        """Settle, then deliver up to `size` messages, in one round trip where the server allows it.

        An empty batch: nothing came within `wait_ms`, or within the channel's own time. `None`: nothing
        will come any more.
        """

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """Settle, and mark what was refused."""

    def next_message(self, queued: deque[M]) -> M | None:
        """Take the next message, or `None` if it may not be handled now: call again while some are queued.

        What is no longer this consumer's is dropped and counted; what has to wait is kept by the channel.

        Raises:
            LeaseLostError: all of them may be another consumer's.
        """

    def set_aside(self, msg: M) -> None:
        """Keep back what must not be handled before this message, which cannot be handled now."""

    def take_back(self, msg: M) -> Sequence[M]:
        """The message that was set aside, and what was kept back for it, in order."""

    def begin(self, msg: M) -> Settlement | None:
        """What must be settled before the handler runs, `None` for nothing."""

    def settlement_without_handler(self, msg: M) -> Settlement | None:
        """The settlement of a message whose handler must not run, as one delivered too often; else `None`."""

    def decide(self, msg: M, result: Outcome | Exception, seconds: float) -> Settlement:
        """The settlement of what a handler returned or raised after so many seconds."""

    def decide_malformed(self, entry: MalformedEntry) -> Settlement:
        """The settlement of an entry that cannot become a message."""

    def hand_back(self, queued: Sequence[M]) -> int:
        """Free what was delivered and not begun for others, and count as taken over what was not ours.

        The last call: after it, others may use the consumer's name.
        """

    def as_delivered(self, msg: M) -> M:
        """The message without what its handler changed, to be handled again as the same attempt."""

    def described(self, delivered: M | MalformedEntry) -> tuple[str, int]:
        """What log lines call a delivery, and the number of its attempt."""

    def count_unavailable(self, messages: int) -> None:
        """So many messages wait since the database is unavailable, or refused them."""


def described_entry(delivered: EntryMessage | MalformedEntry, channel: object) -> tuple[str, int]:
    """As `Channel.described`, of an entry that is known by its id."""
    attempt = delivered.delivery_count if isinstance(delivered, MalformedEntry) else delivered.attempt
    return f"entry {delivered.id} of {channel}", attempt
