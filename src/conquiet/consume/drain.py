"""drain and drain_stale: read several, handle each in its own transaction, ack what was committed, stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from sqlalchemy import Engine

from conquiet.consume.handling import Handler, MessageHandling
from conquiet.consume.loop import DrainLimits, DrainLoop
from conquiet.consume.report import DrainReport
from conquiet.consume.sources import InTurn, LeftBehind, NewMessages, OwnMessages, StaleMessages
from conquiet.db import Inbox
from conquiet.queue import RedisStreamsQueue
from conquiet.queue.stream import HANDED_BACK_IDLE_MS


def drain(
    queue: RedisStreamsQueue,
    handler: Handler,
    engine: Engine,
    max_messages: int,
    *,
    max_duration_s: float | None = None,
    idle_ms: int = 1_000,
    on_error: Literal["raise", "continue"] = "raise",
    max_failures: int | None = None,
    max_deliveries: int | None = None,
    quarantine_to: str | None = None,
    inbox: Inbox | None = None,
    batch_size: int = 100,
    should_stop: Callable[[], bool] | None = None,
    take_back_from: Sequence[str] = (),
) -> DrainReport:
    """Handle up to `max_messages`: what this consumer's name has pending, what was handed back, new ones.

    Each message has its own transaction and is acked after its commit; acks travel with the next read. What
    was read and not begun when the drain leaves early is handed back: pending, and the next drain's to take.

    Args:
        max_duration_s: no message is begun after this time.
        idle_ms: how long the stream must be empty for the drain to end.
        on_error: "raise" stops at the first failing message and raises its error with the report as
            `drain_report`; "continue" goes on and raises one `DrainError` at the end. A malformed entry never
            stops a drain: it counts as failed, and the drain ends with a `DrainError`. Without a
            database every drain ends at once, with a `DatabaseUnavailableError`.
        max_failures: with "continue", how many failed messages end the drain.
        max_deliveries: as in `drain_stale`; without it, what fails each time is taken first each time.
        inbox: skip the handler of messages that were handled before.
        batch_size: the most that one read asks for; slow handlers make it smaller.
        should_stop: asked between messages.
        take_back_from: consumers that are known to be dead, as earlier tries of the same task: what they
            left is handled before new messages, and the group forgets their names.
    """
    limits = DrainLimits(
        max_messages=max_messages,
        max_duration_s=max_duration_s,
        on_error=on_error,
        max_failures=max_failures,
        batch_size=batch_size,
        should_stop=should_stop,
        max_deliveries=max_deliveries,
        quarantine_to=quarantine_to,
    )
    source = InTurn(
        # What was taken back and fails is this consumer's own then: it must not come a second time.
        OwnMessages(queue),
        LeftBehind(queue, take_back_from),
        StaleMessages(queue, HANDED_BACK_IDLE_MS),
        NewMessages(queue, idle_ms=idle_ms),
    )
    with MessageHandling(handler, engine, inbox) as handling:
        return DrainLoop(queue, source, handling, limits).run()


def drain_stale(
    queue: RedisStreamsQueue,
    handler: Handler,
    engine: Engine,
    max_messages: int,
    *,
    min_idle_ms: int | None = None,
    max_deliveries: int | None = None,
    quarantine_to: str | None = None,
    max_duration_s: float | None = None,
    on_error: Literal["raise", "continue"] = "raise",
    max_failures: int | None = None,
    inbox: Inbox | None = None,
    batch_size: int = 100,
    should_stop: Callable[[], bool] | None = None,
) -> DrainReport:
    """Claim and handle up to `max_messages` that nobody has touched for `min_idle_ms`; then as `drain`.

    Args:
        min_idle_ms: the queue's `claim_idle_ms` unless given.
        max_deliveries: a message delivered more often than this is moved to the quarantine stream instead of
            being handled once more; off by default.
        quarantine_to: another stream than `{stream}:quarantine`; on a cluster one in the stream's slot.
    """
    limits = DrainLimits(
        max_messages=max_messages,
        max_duration_s=max_duration_s,
        on_error=on_error,
        max_failures=max_failures,
        batch_size=batch_size,
        should_stop=should_stop,
        max_deliveries=max_deliveries,
        quarantine_to=quarantine_to,
    )
    source = StaleMessages(queue, queue.config.claim_idle_ms if min_idle_ms is None else min_idle_ms)
    with MessageHandling(handler, engine, inbox) as handling:
        return DrainLoop(queue, source, handling, limits).run()
