"""Waiting: a sleep that is woken again and again ends at once, and so does every later one."""

from __future__ import annotations

import threading
from typing import Any, cast

from conquiet.mq import Topic
from conquiet.mq.own.waiting import Waiting
from tests.eventually import HANG_S

#: Nothing of it is used by a sleep.
NO_TOPIC = cast("Topic", None)


class WokenWhileHeld:
    """The lock of a sleep, which is woken once more just after it was acquired."""

    def __init__(self, waiting: Any) -> None:
        self._waiting, self._lock = waiting, waiting._sleeping

    def acquire(self, timeout: float) -> bool:
        is_acquired: bool = self._lock.acquire(timeout=timeout)
        self._waiting._sleeping = self._lock
        self._waiting.wake()
        self._waiting._sleeping = self
        return is_acquired

    def release(self) -> None:
        self._lock.release()


def test_a_second_wake_in_the_moment_in_which_a_sleep_ends_breaks_nothing():
    waiting = Waiting(NO_TOPIC, "orders", "billing")
    lock = WokenWhileHeld(waiting)
    waiting.wake()
    waiting._sleeping = cast("Any", lock)

    waiting.sleep(wait_ms=int(HANG_S * 1000))
    waiting.sleep(wait_ms=int(HANG_S * 1000))


def test_a_sleep_is_ended_from_another_thread():
    waiting = Waiting(NO_TOPIC, "orders", "billing")
    waker = threading.Timer(0.05, waiting.wake)
    waker.start()

    waiting.sleep(wait_ms=int(HANG_S * 1000))

    waker.join()
