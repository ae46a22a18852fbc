"""RedisStreamsQueue: Redis Streams as they are, one call for one command, every failure visible."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Self

from conquiet.arguments import check_positive_int
from conquiet.payload import PayloadCodec, Sendable
from conquiet.queue.batch_size import BATCH_BYTES, FEW_MESSAGES
from conquiet.queue.config import QueueConfig, check_config
from conquiet.queue.connection import (
    AS_BYTES,
    Client,
    check_primary,
    close_client,
    in_step,
    longest_block_ms,
    open_client,
    queue_error,
    visible_errors,
)
from conquiet.queue.member import HANDED_BACK_IDLE_MS as HANDED_BACK_IDLE_MS
from conquiet.queue.member import GroupMember, entries_of
from conquiet.queue.message import QueueMessage, RawEntry, delivery_of
from conquiet.queue.scripts import ack_and_read, create_group
from conquiet.queue.writer import StreamWriter


class RedisStreamsQueue(GroupMember):
    """One stream, one consumer group, one consumer; no loop, no retry, no buffer.

    Every Redis failure is raised as `QueueError`. A client that was passed in keeps its own settings, its
    retries too; `from_url` makes one that never retries.

    Examples:
        >>> config = QueueConfig("refunds", "accounting", "worker-1")
        >>> with RedisStreamsQueue.from_url(server.url, config) as refunds:
        ...     added = refunds.enqueue({"order_id": 7})
        ...     (msg,) = refunds.read(block_ms=1_000)
        ...     refunds.ack(msg)
    """

    def __init__(self, client: Client, config: QueueConfig, *, codec: PayloadCodec | None = None) -> None:
        """Use this client.

        Args:
            codec: makes the JSON object of every payload that is sent, and of what a drain of this queue
                reads a value of its `payload=`; `StandardCodec` unless given, and dicts are sent as they are.
        """
        super().__init__(client, config)
        self.codec = codec
        self._closes_client = False
        self._writer = StreamWriter(
            client,
            config.stream_key,
            group=config.consumer_group,
            min_replicas=config.min_replicas,
            replica_timeout_ms=config.replica_timeout_ms,
            fsync=config.fsync,
            codec=codec,
        )
        #: What is known of the stream's end, by what is enqueued here and by drains.
        self.ends = self._writer.ends
        self.ends.who = config.consumer_name
        with visible_errors("XGROUP CREATE", **self._names):
            create_group(client, config.stream_key, config.consumer_group)
        with visible_errors("connect", **self._names):
            self._longest_block_ms = longest_block_ms(client, config.stream_key)

    @classmethod
    def from_url(
        cls, url: str, config: QueueConfig, *, codec: PayloadCodec | None = None, **options: Any
    ) -> Self:
        """Open `redis://`, `rediss://`, `unix://`, `redis+sentinel://` or `redis+cluster://` without retries.

        The queue owns the client: `close()`, or the end of a `with` block, closes it.
        """
        check_config(config)
        with visible_errors("connect", stream=config.stream_key, group=config.consumer_group):
            client = open_client(url, block_ms=config.block_ms, **options)
        try:
            queue = cls(client, config, codec=codec)
        except BaseException:
            client.close()
            raise
        queue._closes_client = True
        return queue

    def close(self) -> None:
        """Close the client if `from_url` made it; what is pending stays pending."""
        if self._closes_client:
            close_client(self.client)

    def enqueue(self, payload: Sendable) -> str:
        """Add one message and return its entry id."""
        return self._writer.enqueue(payload)

    def enqueue_many(self, payloads: Iterable[Sendable], *, batch_size: int = 1_000) -> list[str]:
        """Add messages in order, `batch_size` to a round trip; if one payload is refused, none is added."""
        return self._writer.enqueue_many(payloads, batch_size=batch_size)

    def enqueue_once(
        self, payloads: Iterable[Sendable], *, dedupe_id: str, window_ms: int = 24 * 3_600_000
    ) -> list[str]:
        """As `StreamWriter.enqueue_once`: a second call with this id returns the first one's entry ids."""
        return self._writer.enqueue_once(payloads, dedupe_id=dedupe_id, window_ms=window_ms)

    def read(self, block_ms: int, count: int = 1) -> list[QueueMessage]:
        """Deliver up to `count` new messages; they are pending until acked.

        Waits up to `block_ms`, and never longer than the client's socket timeout allows. Of more than a few
        messages, no more are delivered after `BATCH_BYTES`: they may be large.

        Raises:
            MalformedEntryError: it carries the well-formed messages of this read.
        """
        command = self._read_command(block_ms, count)
        if count > FEW_MESSAGES:
            return self._ack_and_read_many((), block_ms, count)
        started = time.perf_counter()
        reply = self._call(*command)
        return self._delivered(entries_of(reply), time.perf_counter() - started)

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

        Of more than a few messages, no more are delivered after `BATCH_BYTES`: they may be large. If the ack
        fails, its error is raised and what the read delivered stays pending.
        """
        command = self._read_command(block_ms, count)
        if count > FEW_MESSAGES:
            return self._ack_and_read_many(entry_ids, block_ms, count)
        if not entry_ids:
            return self.read(block_ms, count)
        started = time.perf_counter()
        with visible_errors("XACK with XREADGROUP", **self._names), in_step(self._view):
            pipeline = self._view.pipeline(transaction=False)
            pipeline.execute_command("XACK", self._stream, self._group, *entry_ids)
            pipeline.execute_command(*command, **AS_BYTES)
            acked, reply = replies = pipeline.execute(raise_on_error=False)
        check_primary(self._view, replies)
        if isinstance(acked, Exception):
            raise queue_error("XACK", acked, **self._names) from acked
        self._metrics.count_acks(acked)
        if isinstance(reply, Exception):
            raise queue_error("XREADGROUP", reply, **self._names) from reply
        return self._delivered(entries_of(reply), time.perf_counter() - started)

    def claim_stale(self, min_idle_ms: int, count: int = 10) -> list[QueueMessage]:
        """Take over up to `count` messages that have been idle for `min_idle_ms`, from any consumer.

        Best effort and bounded: one XPENDING, then XCLAIM, a few at a time and no more after `BATCH_BYTES`.
        Trimmed or deleted entries are skipped.

        Raises:
            MalformedEntryError: it carries the well-formed messages of this claim.
        """
        delivery, _ = self.claim_page(min_idle_ms, count)
        return delivery.messages_or_raise("XCLAIM", **self._names)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read_command(self, block_ms: int, count: int) -> tuple[Any, ...]:
        check_positive_int("block_ms", block_ms)
        check_positive_int("count", count)
        if self._longest_block_ms is not None:
            block_ms = min(block_ms, self._longest_block_ms)
        reader = ("XREADGROUP", "GROUP", self._group, self._consumer)
        return (*reader, "COUNT", count, "BLOCK", block_ms, "STREAMS", self._stream, ">")

    def _ack_and_read_many(self, entry_ids: Sequence[str], block_ms: int, count: int) -> list[QueueMessage]:
        started = time.perf_counter()
        with visible_errors("XACK with XREADGROUP", **self._names):
            acked, entries = ack_and_read(self.client, self.config, entry_ids, count, BATCH_BYTES)
        self._metrics.count_acks(acked)
        if not entries:
            # A script cannot wait.
            return self.read(block_ms, FEW_MESSAGES)
        return self._delivered(entries, time.perf_counter() - started)

    def _delivered(self, entries: Sequence[RawEntry], seconds: float) -> list[QueueMessage]:
        self._metrics.count_read(len(entries), seconds)
        delivery = delivery_of([(entry, 1) for entry in entries], **self._names)
        return delivery.messages_or_raise("XREADGROUP", **self._names)
