"""The engine: the one loop under every drain, every consumer of a topic and every worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic

from conquiet.consume.attempt import Attempts
from conquiet.consume.channel import Channel, Handling, M
from conquiet.consume.conclusions import Conclusions
from conquiet.consume.decisions import Decisions
from conquiet.consume.ending import Ending
from conquiet.consume.gate import Gate
from conquiet.consume.limits import DrainLimits
from conquiet.consume.loop_state import LoopState
from conquiet.consume.order import Order, order_of
from conquiet.consume.queued import Queued
from conquiet.consume.reads import Reads
from conquiet.consume.report import DrainReport, StopReason
from conquiet.consume.spans import Spans
from conquiet.consume.tally import Tally
from conquiet.consume.unsettled import Unsettled
from conquiet.consume.workers import OwnThread, Threads, Workers
from conquiet.logs import naming_messages_of

if TYPE_CHECKING:
    from conquiet.consume.event_loop import EventLoop


class DrainLoop(Generic[M]):
    """One run over one channel, from its first read to its report; used once, by one thread.

    For each message, or batch: open a transaction, handle, commit, settle, in this order. Whatever ends the
    loop, what was committed is settled, and what was read and not begun is handed back. With
    `limits.concurrency` the handlers, and nothing else, run in other threads.
    """

    def __init__(
        self, channel: Channel[M], handling: Handling[M], limits: DrainLimits, *, gate: Gate | None = None
    ) -> None:
        self._channel = channel
        self._handling = handling
        self._limits = limits
        self._gate = gate or Gate()
        self._spans = spans = Spans(channel.where, channel.stream)
        self._tally = tally = Tally(limits, keeps_failures=gate is None)
        self._unsettled = unsettled = Unsettled(channel, spans, tally)
        # An event loop is in another thread, also for one handler at a time.
        event_loop = handling.event_loop
        order, self._is_concurrent = (
            order_of(limits, channel),
            limits.concurrency > 1 or event_loop is not None,
        )
        self._decisions = Decisions(channel, handling, spans, is_concurrent=self._is_concurrent)
        self._queued = Queued(channel, unsettled, order, self._decisions.alone)
        self.attempts = Attempts(channel, handling, spans, self._gate)
        self._handlers: OwnThread[M] | Workers[M] = OwnThread(self.attempts)
        if self._is_concurrent:
            self._handlers = _new_workers(
                event_loop,
                limits.concurrency,
                order,
                lambda: Attempts(channel, handling.for_another_thread(), spans, self._gate),
            )
        state = LoopState(
            channel=channel,
            handling=handling,
            limits=limits,
            spans=spans,
            tally=tally,
            unsettled=unsettled,
            decisions=self._decisions,
            queued=self._queued,
        )
        self._conclusions = Conclusions(state, self._handlers)
        self._reads = Reads(state, self._conclusions, is_consumer=gate is not None)
        self._ending = Ending(state, self._conclusions)
        self._is_stopping = False

    def stop(self) -> None:
        """Finish what is in handlers, hand back the rest, and end; callable from anywhere."""
        self._is_stopping = True

    def in_handlers(self) -> list[tuple[M, float]]:
        """The messages in handlers, of a batch its first, and since when (monotonic); for any thread."""
        threads = list(self._handlers.threads)
        return [(msg, one.in_handler_since) for one in threads if (msg := one.in_handler) is not None]

    def run(self) -> DrainReport:
        """Work until a limit is reached, nothing more will come, or an error ends it.

        Raises:
            DrainError: messages failed and are still pending.
            LeaseLostError: another consumer may own the channel; what was not settled is handled again.
            QueueError: Redis failed.
            DatabaseUnavailableError: for longer than the channel tolerates.
        """
        try:
            with naming_messages_of(self.attempts):
                stopped_by = self._work()
                if (failed := self._conclusions.wait_for_all()) is not None:
                    raise failed  # noqa: TRY301 -- as any error that ends the loop
                if stopped_by != "stop":
                    self._decisions.aside.raise_first()
                self._ending.finish()
        except BaseException as error:
            self.attempts.end_handling()
            self._ending.finish_after(error)
            raise
        report = self._tally.report(self._channel, stopped_by, len(self._queued.messages))
        if self._tally.has_left_pending:
            raise self._tally.error(report) from self._tally.failures[0].error
        return report

    def settle_while_handling(self, msg: M, then: Callable[[], object]) -> bool:
        """For another thread: while the handler of a message runs, settle what is before it, and do `then`.

        `False`: the handler has ended, nothing was done. After a `QueueError` the loop settles it.
        """
        with self.attempts.while_handling() as handled:
            if handled is not msg:
                return False
            self._unsettled.settle()
            then()
        return True

    def _work(self) -> StopReason:
        queued = self._queued.messages
        # Nothing to ask before a message begins: the usual case is to stay a quick one.
        is_free = not (self._is_concurrent or self._gate.has_limit)
        while (reason := self._reason_to_stop()) is None:
            if self._wait_if_blocked():
                continue
            if not queued and self._decisions.aside.messages:
                queued.extend(self._decisions.take_due())
            size = self._reads.sizes.next
            read = len(queued) or self._read(size)
            if read is None:
                return "idle"
            begun = time.monotonic()
            while queued and self._reason_to_stop() is None and not self._wait_if_blocked():
                if is_free or self._enter():
                    self._handle_next()
                if self._unsettled.are_overdue:
                    self._unsettled.settle()
            if read == size:
                self._reads.sizes.took(time.monotonic() - begun)
        return reason

    def _reason_to_stop(self) -> StopReason | None:
        return "stop" if self._is_stopping else self._tally.reason_to_stop(self._decisions.failed)

    def _wait_if_blocked(self) -> bool:
        """Wait for a moment if the consumer is paused or the database is unavailable."""
        database = self._decisions.database
        if not self._gate.is_paused and (not database.is_on or database.is_time_to_try()):
            return False
        self._give_way()
        self._conclusions.wait()
        return True

    def _give_way(self) -> None:
        # Before a wait that may be long: what was committed is settled, and others may use the connection.
        self._handling.release()
        self._unsettled.settle()

    def _enter(self) -> bool:
        """Whether the next message may begin now; if not, some have ended or a moment is over."""
        if self._is_concurrent:
            self._conclusions.of_ended()
            others, decisions = self._handlers.count, self._decisions
            # A database that was unavailable is tried with one message.
            is_alone = decisions.database.is_on or not decisions.alone.isdisjoint(self._handlers.ids)
            if not (
                not (others and is_alone)
                and self._handlers.has_room()
                and self._tally.most_to_take(1, len(self._handlers.ids)) == 1
                and self._queued.bring_forward(others)
            ):
                self._conclusions.wait()
                return False
        if not self._gate.has_limit or self._gate.enter_at_once():
            return True
        if self._handlers.count:
            # Those would be waited for in vain.
            self._conclusions.wait()
            return False
        return self._gate.enter(
            lambda: self._gate.is_paused or self._reason_to_stop() is not None, self._give_way
        )

    def _read(self, size: int) -> int | None:
        in_handlers = 0
        if self._is_concurrent:
            self._conclusions.of_ended()
            if self._queued.messages or self._reason_to_stop() is not None:
                # Put back, or the last one: a read that brings nothing would be the end of a drain.
                return 0
            in_handlers = len(self._handlers.ids)
            if in_handlers and not self._reads.has_more(size, in_handlers):
                self._conclusions.wait()
                return 0
        return self._reads.read(size, in_handlers)

    def _handle_next(self) -> None:
        """Begin the next message, or batch; in the loop's own thread it has ended then."""
        messages: list[M] = []
        is_begun = False
        try:
            most = 1
            if self._handling.takes_batches:
                most = self._tally.most_to_take(self._limits.batch_size, len(self._handlers.ids))
            messages = self._queued.take(most, self._handlers.count)
            messages = self._conclusions.without_given_up(messages)
            if messages:
                is_begun = True
                self._handlers.begin(messages)
        except BaseException:
            if is_begun and not self._is_concurrent:
                # Ctrl-C, an exit: nothing that a message did. Handed back with the others, it is no attempt.
                self._queued.messages.extendleft(reversed(messages))
            raise
        finally:
            if not is_begun:
                self._gate.leave()
        self._conclusions.of_ended()


def _new_workers(
    loop: EventLoop | None, most: int, order: Order[M], new_attempts: Callable[[], Attempts[M]]
) -> Workers[M]:
    """Threads, or for `async def` handlers tasks of their event loop."""
    if loop is None:
        return Threads(most, order, new_attempts)
    # Not above: greenlets are an extra.
    from conquiet.consume.coroutines import Coroutines

    return Coroutines(loop, most, order, new_attempts)
