"""GroupMember: one consumer of one group, and the messages that are pending there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from conquiet.arguments import check_name, check_non_negative_int, check_positive_int
from conquiet.queue.backlog import COUNT_LIMIT, BacklogStats, as_mapping, backlog_stats
from conquiet.queue.batch_size import BATCH_BYTES, FEW_MESSAGES
from conquiet.queue.config import QueueConfig, check_config
from conquiet.queue.connection import (
    Client,
    as_text,
    check_client,
    run_command,
    unparsed_view,
    visible_errors,
)
from conquiet.queue.message import Delivery, QueueMessage, RawEntry, delivery_of
from conquiet.queue.metrics import QueueMetrics
from conquiet.queue.scripts import PendingChange, change_pending, remove_consumer, take_from

#: What was handed back counts as delivered in 1970; nothing else is idle for ten years.
HANDED_BACK_IDLE_MS = 10 * 365 * 24 * 3_600_000


class GroupMember:
    """One consumer of one group on one stream: claims, renews, hands back and inspects what is pending.

    A page is up to `count` entries of a pending list, malformed ones too. Its methods return what was
    delivered and the entry id to continue `after`; `None` at the end of the list.
    """

    def __init__(self, client: Client, config: QueueConfig) -> None:
        check_client(client)
        check_config(config)
        self.client = client
        self.config = config
        self._names = {"stream": config.stream_key, "group": config.consumer_group}
        # As bytes: the client may encode text in another way than UTF-8.
        self._stream = config.stream_key.encode()
        self._group = config.consumer_group.encode()
        self._consumer = config.consumer_name.encode()
        self._view = unparsed_view(client)
        self._metrics = QueueMetrics(config.stream_key)

    def claim_page(
        self, min_idle_ms: int, count: int, *, after: str | None = None
    ) -> tuple[Delivery, str | None]:
        """Claim one page of what has been idle for `min_idle_ms`, from any consumer.

        In steps, no further one after `BATCH_BYTES`: only what was claimed tells how large it is.
        """
        check_non_negative_int("min_idle_ms", min_idle_ms)
        check_positive_int("count", count)
        idle = ("IDLE", min_idle_ms) if min_idle_ms else ()
        counts = self._delivery_counts(*idle, "-" if after is None else f"({after}", "+", count)
        if not counts:
            return Delivery([], []), None
        ids, claimed, read, step = [*counts], [], 0, 1
        bytes_left = BATCH_BYTES
        while read < len(ids) and bytes_left > 0:
            page = ids[read : read + step]
            command = ("XCLAIM", self._stream, self._group, self._consumer, min_idle_ms, *page)
            # `parse_justid` makes redis-py leave the reply as it came, repeated fields included.
            # A trimmed or deleted entry is nil on Redis 6.2 and missing on 7.
            entries = [entry for entry in self._call(*command, parse_justid=True) if entry is not None]
            claimed += [(entry, counts[entry[0]] + 1) for entry in entries]
            read += len(page)
            bytes_left -= sum(len(part) for _, fields in entries for part in fields)
            step = max(1, min(FEW_MESSAGES, bytes_left * read // max(1, BATCH_BYTES - bytes_left)))
        return self._claimed(claimed), ids[read - 1].decode()

    def claim_ids(self, min_idle_ms: int, most: int) -> list[str]:
        """Claim up to so many for this consumer, page by page, and return their ids without their content."""
        check_positive_int("most", most)
        claimed: list[str] = []
        after = None
        while len(claimed) < most:
            count = min(most - len(claimed), 1_000)
            delivery, after = self.claim_page(min_idle_ms, count, after=after)
            if after is None:
                break
            claimed += [msg.id for msg in delivery.messages] + [entry.id for entry in delivery.malformed]
        return claimed

    def own_page(self, count: int, *, after: str | None = None) -> tuple[Delivery, str | None]:
        """Deliver again one page of what is pending at this consumer's own name."""
        check_positive_int("count", count)
        command = ("XREADGROUP", "GROUP", self._group, self._consumer, "COUNT", count)
        entries = entries_of(self._call(*command, "STREAMS", self._stream, after or "0"))
        if not entries:
            return Delivery([], []), None
        first, last = entries[0][0], entries[-1][0]
        counts = self._delivery_counts(first, last, count, self._consumer)
        # A deleted entry has no fields; one without a count was claimed by another consumer since.
        ours = [(entry, counts[entry[0]]) for entry in entries if entry[1] and entry[0] in counts]
        return self._claimed(ours), last.decode()

    def take_page(
        self, consumer: str, count: int, *, after: str | None = None, drains: str | None = None
    ) -> tuple[Delivery, str | None]:
        """Take over one page of what is pending at a consumer that is known to be dead, however idle.

        Args:
            drains: the key of the group's drains; nothing is taken from one that is alive.
        """
        check_name("consumer", consumer)
        check_positive_int("count", count)
        with visible_errors("XCLAIM", **self._names):
            start = "-" if after is None else f"({after}"
            last, taken = take_from(
                self.client, self.config, consumer, start, count, max_bytes=BATCH_BYTES, drains=drains
            )
        return self._claimed([((entry_id, fields), delivered) for entry_id, fields, delivered in taken]), last

    def renew(self, messages: Sequence[QueueMessage]) -> list[QueueMessage]:
        """Reset the idle time of messages; returns those that are still pending at this consumer."""
        return self._still_pending("renew", messages)

    def hand_back(self, messages: Sequence[QueueMessage]) -> list[QueueMessage]:
        """Give up unhandled messages: pending, delivery count as before, free for the next claim.

        Returns those that were still pending at this consumer.
        """
        return self._still_pending("hand_back", messages)

    def pending_counts(self, most: int) -> dict[str, int]:
        """How often each entry was delivered that is pending at this consumer and not free for others."""
        check_positive_int("most", most)
        command = ("XPENDING", self._stream, self._group, "-", "+", most, self._consumer)
        rows = self._call(*command, parse_detail=True)
        return {
            as_text(row["message_id"]): row["times_delivered"]
            for row in rows
            if row["time_since_delivered"] < HANDED_BACK_IDLE_MS
        }

    def pending_messages(self, counts: Mapping[str, int]) -> list[QueueMessage]:
        """The messages of `pending_counts`, without another delivery; one that was deleted is missing."""
        entries = [
            (entry, count)
            for entry_id, count in counts.items()
            for entry in self._call("XRANGE", self._stream, entry_id, entry_id)
        ]
        return delivery_of(entries, **self._names).messages

    def change_pending(self, change: PendingChange, counts: Mapping[str, int]) -> set[str]:
        """Renew, release or hand back entries of `pending_counts`; returns those that were still pending.

        Released is free for the next claim, as handed back, but keeps its delivery count.
        """
        if not counts:
            return set()
        with visible_errors(change, **self._names):
            return change_pending(self.client, self.config, change, counts)

    def backlog_stats(self, *, count_limit: int = COUNT_LIMIT) -> BacklogStats:
        """Length, lag, pending and consumers: read-only, bounded, never called by the queue itself."""
        check_positive_int("count_limit", count_limit)
        return backlog_stats(self._call, self.config.stream_key, self._group, count_limit=count_limit)

    def consumer_names(self) -> list[str]:
        """Every consumer of the group; Redis keeps a name until it is removed."""
        infos = self._call("XINFO CONSUMERS", self._stream, self._group)
        return [as_text(as_mapping(info)["name"]) for info in infos]

    def remove_consumer(self, name: str) -> bool:
        """Remove a consumer from the group; `False`, and nothing changes, if it has something pending."""
        check_name("name", name)
        with visible_errors("XGROUP DELCONSUMER", **self._names):
            return remove_consumer(self.client, self.config, name)

    def _check_ours(self, msg: QueueMessage) -> None:
        ours = self.config
        if msg.stream != ours.stream_key or msg.group != ours.consumer_group:
            raise ValueError(
                f"msg {msg.id} is of stream {msg.stream!r} and group {msg.group!r}, this queue is of "
                f"{ours.stream_key!r} and {ours.consumer_group!r}"
            )

    def _still_pending(self, change: PendingChange, messages: Sequence[QueueMessage]) -> list[QueueMessage]:
        for message in messages:
            self._check_ours(message)
        changed = self.change_pending(change, {message.id: message.delivery_count for message in messages})
        return [message for message in messages if message.id in changed]

    def _delivery_counts(self, *selection: Any) -> dict[bytes, int]:
        rows = self._call("XPENDING", self._stream, self._group, *selection, parse_detail=True)
        return {row["message_id"]: row["times_delivered"] for row in rows}

    def _claimed(self, entries: Sequence[tuple[RawEntry, int]]) -> Delivery:
        self._metrics.count_claims(len(entries))
        return delivery_of(entries, **self._names)

    def _call(self, *command: Any, **options: Any) -> Any:
        return run_command(self._view, *command, **self._names, **options)


def entries_of(reply: Any) -> list[RawEntry]:
    """The entries in the reply of an XREADGROUP of one stream, as every client and protocol gives it."""
    if not reply:
        return []
    # A list of [stream, entries] in RESP2, a mapping in RESP3.
    entries = next(iter(reply.values())) if isinstance(reply, dict) else reply[0][1]
    # A cluster client on RESP3 wraps its parsed entries once more.
    is_wrapped = entries and isinstance(entries[0], list) and entries[0] and isinstance(entries[0][0], tuple)
    return entries[0] if is_wrapped else entries  # type: ignore[no-any-return]  # redis-py's replies are untyped
