"""drain and drain_stale: one message, one transaction, acked after its commit, until a limit is reached."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Engine

from conquiet.consume.batch_handling import new_handling
from conquiet.consume.engine import DrainLoop
from conquiet.consume.handling import Handler, MessageHandling
from conquiet.consume.limits import DrainLimits
from conquiet.consume.presence import Presence
from conquiet.consume.report import DrainReport
from conquiet.consume.stream_channel import StreamChannel
from conquiet.db import Inbox
from conquiet.masking import shown
from conquiet.queue import RedisStreamsQueue


def drain(
    queue: RedisStreamsQueue,
    handler: Handler,
    engine: Engine,
    limits: DrainLimits | None = None,
    *,
    inbox: Inbox | bool | None = None,
    take_over_from: Sequence[str] = (),
) -> DrainReport:
    """Handle this consumer's pending messages, what dead drains left, handed-back ones, then new ones.

    Each message has its own transaction and is acked after its commit; acks travel with the next read.
    Messages that were read and not started are handed back: pending, and the next drain claims them.

    Args:
        inbox: skip the handler of messages that were handled before; `True` for an `Inbox()`.
        take_over_from: consumers that are known to be dead, as earlier tries of the same task: what they
            left is handled before new messages, and the group forgets their names.

    Raises:
        ConsumerBusyError: another drain lives under this consumer's name.
        DrainError: messages failed and are still pending; a malformed entry always is.
        DatabaseUnavailableError: the database cannot be reached or refuses to write; the message is handed
            back.

    Examples:
        >>> queue.enqueue({"order_id": 9})
        '1...-0'
        >>> report = drain(queue, bill, engine, DrainLimits(max_deliveries=5), inbox=True)
        >>> report.failed
        0
    """
    _check_queue(queue)
    limits = limits or DrainLimits()
    with _handling(handler, engine, inbox) as handling, Presence(queue) as presence:
        channel = StreamChannel.for_drain(presence, limits, take_over_from)
        return DrainLoop(channel, handling, limits).run()


def drain_stale(
    queue: RedisStreamsQueue,
    handler: Handler,
    engine: Engine,
    limits: DrainLimits | None = None,
    *,
    inbox: Inbox | bool | None = None,
    min_idle_ms: int | None = None,
) -> DrainReport:
    """Claim and handle messages of any consumer that are idle for `min_idle_ms`; no new ones are read.

    Args:
        min_idle_ms: the queue's `claim_idle_ms` unless given; longer than the longest handler.

    Examples:
        >>> report = drain_stale(queue, bill, engine, DrainLimits(max_deliveries=5), min_idle_ms=60_000)
    """
    _check_queue(queue)
    limits = limits or DrainLimits()
    min_idle_ms = queue.config.claim_idle_ms if min_idle_ms is None else min_idle_ms
    with _handling(handler, engine, inbox) as handling, Presence(queue) as presence:
        channel = StreamChannel.for_stale(presence, limits, min_idle_ms)
        return DrainLoop(channel, handling, limits).run()


def _check_queue(queue: object) -> None:
    if not isinstance(queue, RedisStreamsQueue):
        raise TypeError(
            f"queue must be a RedisStreamsQueue, got {shown(queue)}; a topic is drained by drain_partition "
            "or drain_topic"
        )


def _handling(handler: Handler, engine: Engine, inbox: Inbox | bool | None) -> MessageHandling:
    if engine is None:
        raise TypeError(
            "a plain stream is drained into a database: engine must be a SQLAlchemy Engine, not None"
        )
    return new_handling(handler, engine, inbox)
