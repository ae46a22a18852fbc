"""Ctrl-C at every instruction around a handler: no lock is left, and the loop ends with it."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from conquiet.consume import attempt
from conquiet.consume.engine import DrainLoop
from conquiet.consume.limits import DrainLimits
from conquiet.consume.outcome import Ack, Settlement
from conquiet.consume.report import Elsewhere
from conquiet.queue.message import Delivery, QueueMessage
from conquiet.tracing import Where

#: The functions in which a handler begins and ends for other threads.
_AROUND = {"_run_handler", "end_handling"}


class OneMessage:
    """A channel with one message."""

    where, stream = Where(destination="s", group="g", consumer="c"), "s"
    max_outage_s, max_outages_of_message = 0.0, 0
    is_caught_up, is_shared, can_settle, claimed_by_others = True, False, True, 0
    elsewhere, key_of = Elsewhere(), None

    def __init__(self) -> None:
        self.messages = [QueueMessage("s", "g", "1-0", {})]
        self.settled: list[Settlement] = []
        self.handed_back: list[QueueMessage] = []

    def read(self, settlements: Sequence[Settlement], *_: Any) -> Delivery | None:
        self.settle(settlements)
        taken, self.messages = self.messages, []
        return Delivery(taken, []) if taken else None

    def settle(self, settlements: Sequence[Settlement]) -> None:
        for settlement in settlements:
            settlement.is_done = True
            self.settled.append(settlement)

    def next_message(self, queued: deque[QueueMessage]) -> QueueMessage:
        return queued.popleft()

    def begin(self, _msg: QueueMessage) -> None:
        """Nothing."""

    def settlement_without_handler(self, _msg: QueueMessage) -> None:
        """None of it."""

    def decide(self, msg: QueueMessage, *_: Any) -> Settlement:
        return Settlement("ack", msg.id, 1, outcome="handled")

    def hand_back(self, queued: Sequence[QueueMessage]) -> int:
        self.handed_back += queued
        return len(queued)


class Returning:
    """A handler that returns, or raises."""

    has_inbox = takes_batches = False
    event_loop = None

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def handle(self, _msg: QueueMessage) -> Ack:
        if self._error is not None:
            raise self._error
        return Ack()

    def release(self) -> None:
        """Nothing."""

    def purge_inbox(self) -> None:
        """Nothing."""


def new_loop(error: Exception | None = None) -> tuple[DrainLoop[QueueMessage], OneMessage]:
    channel, handling = OneMessage(), Returning(error)
    return DrainLoop(channel, handling, DrainLimits(idle_ms=1)), channel  # type: ignore[arg-type]


@contextmanager
def interrupted_at(number: int | None) -> Iterator[list[int]]:
    """Raise KeyboardInterrupt before the instruction of this number; yields the lines of all before it."""
    met: list[int] = []

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        if frame.f_code.co_filename != attempt.__file__ or frame.f_code.co_name not in _AROUND:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            met.append(frame.f_lineno)
            if len(met) - 1 == number:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield met
    finally:
        sys.settrace(before)


def is_free_for_others(loop: DrainLoop[QueueMessage]) -> list[Any]:
    """What another thread sees; empty if it waits for the lock."""
    seen: list[Any] = []

    def look() -> None:
        with loop.attempts.while_handling() as handled:
            seen.append(handled)

    other = threading.Thread(target=look, daemon=True)
    other.start()
    other.join(60)
    return seen


@pytest.mark.parametrize("error", [None, ValueError("a failed attempt")])
def test_ctrl_c_at_any_instruction_around_a_handler_leaves_no_lock_and_no_message(
    error: Exception | None,
) -> None:
    loop, _ = new_loop(error)
    with interrupted_at(None) as all_of_them:
        loop.run()
    assert len(all_of_them) > 20

    for number in range(len(all_of_them)):
        loop, channel = new_loop(error)
        with interrupted_at(number) as met, pytest.raises(KeyboardInterrupt):
            loop.run()
        line = met[-1]

        assert (line, is_free_for_others(loop)) == (line, [None])
        assert (line, [msg.id for msg in channel.handed_back], channel.settled) == (line, ["1-0"], [])


def test_ctrl_c_while_the_end_of_a_handler_waits_for_another_thread_leaves_the_lock_to_that() -> None:
    loop, channel = new_loop()
    lock, events = loop.attempts._lock, []

    class Interrupted:
        """The lock, while another thread has it: the wait for it is interrupted once."""

        def __enter__(self) -> None:
            events.append("waits")
            if len(events) == 1:
                lock.acquire()
                raise KeyboardInterrupt
            lock.release()
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            events.append("releases")
            lock.release()

    loop.attempts._lock = Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        loop.run()

    assert events == ["waits", "waits", "releases"]
    assert [msg.id for msg in channel.handed_back] == ["1-0"]


def test_what_a_signal_raises_while_the_end_of_a_handler_waits_is_a_failed_attempt() -> None:
    loop, channel = new_loop()
    lock = loop.attempts._lock
    raised: list[bool] = []

    class Interrupted:
        def __enter__(self) -> None:
            if not raised:
                raised.append(True)
                raise TimeoutError("by a signal")
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    loop.attempts._lock = Interrupted()  # type: ignore[assignment]
    loop.run()
    loop.attempts._lock = lock

    assert raised == [True]
    assert is_free_for_others(loop) == [None]
    assert len(channel.settled) == 1
