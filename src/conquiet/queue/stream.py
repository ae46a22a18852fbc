"""RedisStreamsQueue: Redis Streams as they are, one call for one command, every failure visible."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, Literal, Self

from redis.exceptions import ResponseError

from conquiet.arguments import check_name, check_non_negative_int, check_positive_int
from conquiet.errors import QueueError
from conquiet.masking import shown
from conquiet.payload import Payload
from conquiet.queue.backlog import BacklogStats, as_mapping, backlog_stats
from conquiet.queue.config import QueueConfig
from conquiet.queue.connection import (
    AS_BYTES,
    Client,
    in_step,
    longest_block_ms,
    open_client,
    queue_error,
    run_command,
    unparsed_view,
    visible_errors,
)
from conquiet.queue.message import Delivery, QueueMessage, RawEntry, delivery_of, entry_id_order
from conquiet.queue.metrics import QueueMetrics
from conquiet.queue.scripts import change_held, remove_consumer, take_from
from conquiet.queue.writer import StreamWriter

#: What was handed back counts as delivered in 1970; nothing else is idle for ten years.
HANDED_BACK_IDLE_MS = 10 * 365 * 24 * 3_600_000


class RedisStreamsQueue:
    """One stream, one consumer group, one consumer; no loop, no retry, no buffer.

    Every Redis failure is raised as `QueueError`. A client that was handed in keeps its own settings, its
    retries too; `from_url` makes one that never retries.
    """

    def __init__(self, client: Client, config: QueueConfig) -> None:
        if not isinstance(client, Client):
            raise TypeError(
                f"client must be a redis.Redis or RedisCluster (not an asyncio one), got {shown(client)}"
            )
        if not isinstance(config, QueueConfig):
            raise TypeError(f"config must be a QueueConfig, got {config!r}")
        self.client = client
        self._drain_lock = threading.Lock()
        self.config = config
        self._names = {"stream": config.stream_key, "group": config.consumer_group}
        # As bytes: a client may have been told to encode text in another way than UTF-8.
        self._stream = config.stream_key.encode()
        self._group = config.consumer_group.encode()
        self._consumer = config.consumer_name.encode()
        self._closes_client = False
        self._view = unparsed_view(client)
        self._writer = StreamWriter(client, config.stream_key, group=config.consumer_group)
        self._create_group()
        with self._visible("connect"):
            self._longest_block_ms = longest_block_ms(client, config.stream_key)
        self._metrics = QueueMetrics(config.stream_key)

    @classmethod
    def from_url(cls, url: str, config: QueueConfig, **options: Any) -> Self:
        """Open `redis://`, `rediss://`, `unix://`, `redis+sentinel://` or `redis+cluster://` without retries.

        The queue owns the client: `close()`, or the end of a `with` block, closes it.
        """
        with visible_errors("connect", stream=config.stream_key, group=config.consumer_group):
            client = open_client(url, block_ms=config.block_ms, **options)
        try:
            queue = cls(client, config)
        except BaseException:
            client.close()
            raise
        queue._closes_client = True
        return queue

    def close(self) -> None:
        """Close the client if `from_url` made it; what is pending stays pending."""
        if self._closes_client:
            self.client.close()

    def enqueue(self, payload: Payload) -> str:
        """Add one message and return its entry id."""
        return self._writer.enqueue(payload)

    def enqueue_many(self, payloads: Iterable[Payload], *, batch_size: int = 1_000) -> list[str]:
        """Add messages in order, `batch_size` to a round trip; if one payload is refused, none is added."""
        return self._writer.enqueue_many(payloads, batch_size=batch_size)

    def enqueue_once(
        self, payloads: Iterable[Payload], *, dedupe_id: str, window_ms: int = 24 * 3_600_000
    ) -> list[str]:
        """As `StreamWriter.enqueue_once`: a second call with this id returns the first one's entry ids."""
        return self._writer.enqueue_once(payloads, dedupe_id=dedupe_id, window_ms=window_ms)

    def read(self, block_ms: int, count: int = 1) -> list[QueueMessage]:
        """Deliver up to `count` new messages; they are pending until acked.

        Waits up to `block_ms`, and never longer than the client's socket timeout allows.

        Raises:
            MalformedEntryError: it carries the well-formed messages of this read.
        """
        command = self._read_command(block_ms, count)
        started = time.perf_counter()
        reply = self._call(*command)
        return self._delivered(reply, time.perf_counter() - started)

    def ack(self, msg: QueueMessage) -> None:
        """Acknowledge one message; acking twice is allowed."""
        self._check_ours(msg)
        self.ack_ids([msg.id])

    def ack_ids(self, entry_ids: Sequence[str]) -> int:
        """Acknowledge entries by id, malformed ones too; returns how many were pending until now."""
        if not entry_ids:
            return 0
        acked: int = self._call("XACK", self._stream, self._group, *entry_ids)
        self._metrics.count_acks(acked)
        return acked

    def ack_and_read(self, entry_ids: Sequence[str], block_ms: int, count: int = 1) -> list[QueueMessage]:
        """Acknowledge, then read, in one round trip; the server acks before it waits.

        If the ack fails, its error is raised and whatever the read delivered stays pending.
        """
        if not entry_ids:
            return self.read(block_ms, count)
        command = self._read_command(block_ms, count)
        started = time.perf_counter()
        with self._visible("XACK with XREADGROUP"), in_step(self._view):
            pipeline = self._view.pipeline(transaction=False)
            pipeline.execute_command("XACK", self._stream, self._group, *entry_ids)
            pipeline.execute_command(*command, **AS_BYTES)
            acked, reply = pipeline.execute(raise_on_error=False)
        self._raise_if_error("XACK", acked)
        self._metrics.count_acks(acked)
        self._raise_if_error("XREADGROUP", reply)
        return self._delivered(reply, time.perf_counter() - started)

    def claim_stale(self, min_idle_ms: int, count: int = 10) -> list[QueueMessage]:
        """Take over up to `count` messages that nobody has touched for `min_idle_ms`, from any consumer.

        Best effort and bounded: one XPENDING, one XCLAIM. Trimmed or deleted entries are skipped.

        Raises:
            MalformedEntryError: it carries the well-formed messages of this claim.
        """
        delivery, _ = self.claim_page(min_idle_ms, count)
        return delivery.messages_or_raise("XCLAIM", **self._names)

    def claim_page(
        self, min_idle_ms: int, count: int, *, after: str | None = None
    ) -> tuple[Delivery, str | None]:
        """Claim one page of the pending list: what nobody has touched for `min_idle_ms`.

        Returns what was delivered, and the entry id to continue `after`; `None` at the list's end.
        """
        check_non_negative_int("min_idle_ms", min_idle_ms)
        check_positive_int("count", count)
        idle = ("IDLE", min_idle_ms) if min_idle_ms else ()
        counts = self._pending_counts(*idle, "-" if after is None else f"({after}", "+", count)
        if not counts:
            return Delivery([], []), None
        command = ("XCLAIM", self._stream, self._group, self._consumer, min_idle_ms, *counts)
        # `parse_justid` makes redis-py leave the reply as it came, repeated fields included.
        reply = self._call(*command, parse_justid=True)
        # A trimmed or deleted entry is nil on Redis 6.2 and missing on 7: there is nothing left to deliver.
        entries = [(entry, counts[entry[0]] + 1) for entry in reply if entry is not None]
        return self._claimed(entries), max(counts, key=entry_id_order).decode()

    def own_page(self, count: int, *, after: str | None = None) -> tuple[Delivery, str | None]:
        """Deliver again one page of what this consumer's name has pending; returns as `claim_page`.

        Redis itself reads it from the consumer's own list, so nothing is taken from anybody else.
        """
        check_positive_int("count", count)
        command = ("XREADGROUP", "GROUP", self._group, self._consumer, "COUNT", count)
        entries = _entries_of(self._call(*command, "STREAMS", self._stream, after or "0"))
        if not entries:
            return Delivery([], []), None
        first, last = entries[0][0], entries[-1][0]
        counts = self._pending_counts(first, last, count, self._consumer)
        # A deleted entry has no fields; one without a count was claimed by somebody else meanwhile.
        ours = [(entry, counts[entry[0]]) for entry in entries if entry[1] and entry[0] in counts]
        return self._claimed(ours), last.decode()

    def take_page(
        self, consumer: str, count: int, *, after: str | None = None
    ) -> tuple[Delivery, str | None]:
        """Take one page of what another consumer has pending, however short its idle time; as `claim_page`.

        For a consumer that is known to be dead; nothing is taken from anybody else.
        """
        check_name("consumer", consumer)
        check_positive_int("count", count)
        with self._visible("XCLAIM"):
            start = "-" if after is None else f"({after}"
            last, taken = take_from(self.client, self.config, consumer, start, count)
        return self._claimed([((entry_id, fields), delivered) for entry_id, fields, delivered in taken]), last

    def renew(self, messages: Sequence[QueueMessage]) -> list[QueueMessage]:
        """Reset the idle time of what this consumer still holds; returns the messages it still holds."""
        return self._change_held("renew", messages)

    def hand_back(self, messages: Sequence[QueueMessage]) -> list[QueueMessage]:
        """Give up unhandled messages: still pending, delivery count as before, free for the next claim.

        Returns the ones that were still this consumer's to give.
        """
        return self._change_held("hand_back", messages)

    def backlog_stats(self, *, count_limit: int = 1_000) -> BacklogStats:
        """Look at length, lag, pending and consumers: read-only, bounded, never called by itself."""
        check_positive_int("count_limit", count_limit)
        return backlog_stats(self._call, self.config, count_limit=count_limit)

    def consumer_names(self) -> list[str]:
        """Everybody whom the group knows; consumers stay known until they are removed."""
        infos = self._call("XINFO CONSUMERS", self._stream, self._group)
        return [as_mapping(info)["name"].decode() for info in infos]

    def remove_consumer(self, name: str) -> bool:
        """Make the group forget a consumer; `False`, and nothing changes, if it has something pending."""
        check_name("name", name)
        with self._visible("XGROUP DELCONSUMER"):
            return remove_consumer(self.client, self.config, name)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Refuse a second drain of this queue while one runs: it would take what the first one holds.

        Raises:
            RuntimeError: this queue is being drained, by another thread or by the handler's own caller.
        """
        if not self._drain_lock.acquire(blocking=False):
            name = self.config.consumer_name
            raise RuntimeError(
                f"consumer {name!r} is draining already; give each drain its own consumer_name"
            )
        try:
            yield
        finally:
            self._drain_lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _create_group(self) -> None:
        try:
            self._call("XGROUP CREATE", self._stream, self._group, "0-0", "MKSTREAM")
        except QueueError as error:
            cause = error.__cause__
            if not (isinstance(cause, ResponseError) and str(cause).startswith("BUSYGROUP")):
                raise

    def _read_command(self, block_ms: int, count: int) -> tuple[Any, ...]:
        check_positive_int("block_ms", block_ms)
        check_positive_int("count", count)
        if self._longest_block_ms is not None:
            block_ms = min(block_ms, self._longest_block_ms)
        reader = ("XREADGROUP", "GROUP", self._group, self._consumer)
        return (*reader, "COUNT", count, "BLOCK", block_ms, "STREAMS", self._stream, ">")

    def _delivered(self, reply: Any, seconds: float) -> list[QueueMessage]:
        entries = _entries_of(reply)
        self._metrics.count_read(len(entries), seconds)
        delivery = delivery_of([(entry, 1) for entry in entries], **self._names)
        return delivery.messages_or_raise("XREADGROUP", **self._names)

    def _pending_counts(self, *selection: Any) -> dict[bytes, int]:
        rows = self._call("XPENDING", self._stream, self._group, *selection, parse_detail=True)
        return {row["message_id"]: row["times_delivered"] for row in rows}

    def _claimed(self, entries: Sequence[tuple[RawEntry, int]]) -> Delivery:
        self._metrics.count_claims(len(entries))
        return delivery_of(entries, **self._names)

    def _change_held(
        self, change: Literal["renew", "hand_back"], messages: Sequence[QueueMessage]
    ) -> list[QueueMessage]:
        for message in messages:
            self._check_ours(message)
        if not messages:
            return []
        with self._visible(change):
            held = change_held(self.client, self.config, change, messages)
        return [message for message in messages if message.id in held]

    def _check_ours(self, msg: QueueMessage) -> None:
        ours = self.config
        if msg.stream != ours.stream_key or msg.group != ours.consumer_group:
            raise ValueError(
                f"msg {msg.id} is of stream {msg.stream!r} and group {msg.group!r}, this queue is of "
                f"{ours.stream_key!r} and {ours.consumer_group!r}"
            )

    def _call(self, *command: Any, **options: Any) -> Any:
        return run_command(self._view, *command, **self._names, **options)

    def _visible(self, operation: str) -> AbstractContextManager[None]:
        return visible_errors(operation, **self._names)

    def _raise_if_error(self, operation: str, reply: Any) -> None:
        if isinstance(reply, Exception):
            raise queue_error(operation, reply, **self._names) from reply


def _entries_of(reply: Any) -> list[RawEntry]:
    if not reply:
        return []
    # One stream was asked for: a list of [stream, entries] in RESP2, a mapping in RESP3.
    entries = next(iter(reply.values())) if isinstance(reply, dict) else reply[0][1]
    # A cluster client on RESP3 wraps its parsed entries once more.
    is_wrapped = entries and isinstance(entries[0], list) and entries[0] and isinstance(entries[0][0], tuple)
    return entries[0] if is_wrapped else entries  # type: ignore[no-any-return]  # redis-py's replies are untyped
