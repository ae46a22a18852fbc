"""drain and drain_stale: one message, one transaction, acked after its commit, until a limit is reached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine

from conquiet.consume.engine import DrainLoop
from conquiet.consume.handler_kinds import PayloadType, new_handling
from conquiet.consume.handling import Handler
from conquiet.consume.limits import DrainLimits, check_limits
from conquiet.consume.presence import Presence
from conquiet.consume.report import DrainReport
from conquiet.consume.stream_channel import StreamChannel
from conquiet.db import Inbox
from conquiet.masking import shown
from conquiet.queue import RedisStreamsQueue

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from conquiet.consume.async_handling import AsyncHandling
    from conquiet.consume.handling import MessageHandling


def drain(
    queue: RedisStreamsQueue,
    handler: Handler,
    engine: Engine | AsyncEngine,
    limits: DrainLimits | None = None,
    *,
    inbox: Inbox | bool | None = None,
    take_over_from: Sequence[str] = (),
    payload: Any = None,
) -> DrainReport:
    """Handle this consumer's pending messages, what dead drains left, handed-back ones, then new ones.

    Each message has its own transaction and is acked after its commit; acks travel with the next read.
    Messages that were read and not started are handed back: pending, and the next drain claims them.

    Args:
        handler: `handler(msg, session)`; one that is `async def` needs an AsyncEngine, gets an `AsyncSession`
            and runs in an event loop of the drain's own.
        inbox: skip the handler of messages that were handled before; `True` for an `Inbox()`.
        take_over_from: consumers that are known to be dead, as earlier tries of the same task: what they
            left is handled before new messages, and the group forgets their names.
        payload: a type, as a dataclass or a model, or its import string: `msg.payload` is one, by the queue's
            codec. A message that does not fit it fails, as if the handler had raised.

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
    limits = DrainLimits() if limits is None else limits
    check_limits(limits)
    with _handling(queue, handler, engine, inbox, payload) as handling, Presence(queue) as presence:
        channel = StreamChannel.for_drain(presence, limits, take_over_from)
        return DrainLoop(channel, handling, limits).run()


def drain_stale(
    queue: RedisStreamsQueue,
    handler: Handler,
    engine: Engine | AsyncEngine,
    limits: DrainLimits | None = None,
    *,
    inbox: Inbox | bool | None = None,
    min_idle_ms: int | None = None,
    payload: Any = None,
) -> DrainReport:
    """Claim and handle messages of any consumer that are idle for `min_idle_ms`; no new ones are read.

    Handler and payload are as in `drain`.

    Args:
        min_idle_ms: the queue's `claim_idle_ms` unless given; longer than the longest handler.

    Examples:
        >>> report = drain_stale(queue, bill, engine, DrainLimits(max_deliveries=5), min_idle_ms=60_000)
    """
    _check_queue(queue)
    limits = DrainLimits() if limits is None else limits
    check_limits(limits)
    min_idle_ms = queue.config.claim_idle_ms if min_idle_ms is None else min_idle_ms
    with _handling(queue, handler, engine, inbox, payload) as handling, Presence(queue) as presence:
        channel = StreamChannel.for_stale(presence, limits, min_idle_ms)
        return DrainLoop(channel, handling, limits).run()


def _check_queue(queue: object) -> None:
    if not isinstance(queue, RedisStreamsQueue):
        raise TypeError(
            f"queue must be a RedisStreamsQueue, got {shown(queue)}; a topic is drained by drain_partition "
            "or drain_topic"
        )


def _handling(
    queue: RedisStreamsQueue,
    handler: Handler,
    engine: Engine | AsyncEngine,
    inbox: Inbox | bool | None,
    payload: Any,
) -> MessageHandling | AsyncHandling:
    if engine is None:
        raise TypeError(
            "a plain stream is drained into a database: engine must be a SQLAlchemy Engine, not None"
        )
    return new_handling(handler, engine, inbox, payload=PayloadType.of(payload, queue.codec))
