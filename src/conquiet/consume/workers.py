"""Where handlers run: in the loop's own thread, or in several others, each with its connection."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Generic

from conquiet.consume.attempt import Attempt, Attempts
from conquiet.consume.channel import M
from conquiet.consume.order import Order
from conquiet.logs import naming_messages_of

_log = logging.getLogger(__name__)

#: A worker without a message gives its connection back after this time: others may wait for one.
KEEP_CONNECTION_S = 0.05
#: A busy one does after so many messages, so that with fewer connections than workers they take turns.
TURN = 100


class OwnThread(Generic[M]):
    """One attempt at a time, in the thread of the loop; it has ended when `begin` returns."""

    #: Attempts, and the entry ids of their messages, that are in handlers or were not taken by `take_ended`.
    count = 0
    ids: frozenset[str] = frozenset()

    def __init__(self, attempts: Attempts[M]) -> None:
        self._attempts = attempts
        self._ended: Attempt[M] | None = None
        self.threads = [attempts]

    @property
    def is_busy(self) -> bool:
        """Whether an attempt was not taken, as after an interrupt."""
        return self._ended is not None

    def has_room(self) -> bool:
        """Whether one more can begin."""
        return True

    def begin(self, messages: Sequence[M]) -> None:
        """Handle one message or a batch."""
        self._ended = self._attempts.run(messages)

    def take_ended(self, timeout_s: float = 0) -> Attempt[M] | None:
        """One that has ended, maybe after a wait."""
        ended, self._ended = self._ended, None
        if ended is None and timeout_s:
            time.sleep(timeout_s)
        return ended

    def end(self) -> None:
        """Begin nothing more."""


class Workers(ABC, Generic[M]):
    """Several attempts at a time; used by the loop's thread, the workers run handlers and nothing else."""

    def __init__(self, most: int, order: Order[M], new_attempts: Callable[[], Attempts[M]]) -> None:
        self._most = most
        self._order = order
        self._new_attempts = new_attempts
        self._ended: SimpleQueue[Attempt[M]] = SimpleQueue()
        #: The attempts of each worker.
        self.threads: list[Attempts[M]] = []
        self.count = 0
        self.ids: set[str] = set()

    @abstractmethod
    def _start(self, attempts: Attempts[M], number: int) -> None:
        """Start one more worker."""

    @abstractmethod
    def _give(self, messages: Sequence[M] | None) -> None:
        """Have a free worker handle these, or one of them end."""

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Whether a worker is in a handler, or an attempt was not taken; after `end`."""

    def has_room(self) -> bool:
        """Whether a worker is free, after one more was started if need be."""
        if self.count == len(self.threads) < self._most:
            attempts = self._new_attempts()
            try:
                self._start(attempts, len(self.threads) + 1)
            except RuntimeError as error:
                if not self.threads:
                    raise
                # The system allows no further thread: those that are there do the work.
                text = "messages are handled by %d workers instead of %d: %s"
                _log.warning(text, len(self.threads), self._most, error)
                self._most = len(self.threads)
            else:
                self.threads.append(attempts)
        return self.count < len(self.threads)

    def begin(self, messages: Sequence[M]) -> None:
        """Handle one message or a batch in a free worker."""
        try:
            self._order.begin(messages)
        except Exception as error:  # noqa: BLE001 -- the user's function; as if the handler had raised it
            attempts = self.threads[0]
            attempts.leave_gate()
            self._ended.put(Attempt(messages, time.monotonic(), error=error))
        else:
            # Before it is counted: an interrupt in between must not leave the loop waiting for nothing.
            self._give(messages)
        self.count += 1
        self.ids.update(msg.id for msg in messages)

    def take_ended(self, timeout_s: float = 0) -> Attempt[M] | None:
        """One that has ended, maybe after a wait."""
        try:
            attempt = self._ended.get(timeout=timeout_s) if timeout_s else self._ended.get_nowait()
        except Empty:
            return None
        self.count -= 1
        self.ids.difference_update(msg.id for msg in attempt.messages)
        self._order.end(attempt.messages)
        return attempt

    def end(self) -> None:
        """Begin nothing more; each worker ends with its message."""
        for _ in self.threads:
            self._give(None)


class Threads(Workers[M]):
    """Each worker is a thread with a connection of its own."""

    def __init__(self, most: int, order: Order[M], new_attempts: Callable[[], Attempts[M]]) -> None:
        super().__init__(most, order, new_attempts)
        self._jobs: SimpleQueue[Sequence[M] | None] = SimpleQueue()
        self._running: list[threading.Thread] = []

    def _give(self, messages: Sequence[M] | None) -> None:
        self._jobs.put(messages)

    @property
    def is_busy(self) -> bool:
        # In this order: the last one puts what has ended before it does not live any more.
        return any(thread.is_alive() for thread in self._running) or not self._ended.empty()

    def _start(self, attempts: Attempts[M], number: int) -> None:
        # What is current in the loop's thread, as an orchestrator's span, is in the handler too.
        context, name = copy_context(), f"conquiet-handler-{number}"
        thread = threading.Thread(target=context.run, args=(self._work, attempts), name=name, daemon=True)
        thread.start()
        self._running.append(thread)

    def _work(self, attempts: Attempts[M]) -> None:
        number = 0
        with naming_messages_of(attempts):
            try:
                while (messages := self._next_job(attempts, number := number + 1)) is not None:
                    try:
                        attempt = attempts.run(messages)
                    except BaseException as error:  # noqa: BLE001 -- an exit: raised in the loop's thread
                        attempt = Attempt(messages, attempts.in_handler_since, error=error)
                    self._ended.put(attempt)
            finally:
                attempts.release()

    def _next_job(self, attempts: Attempts[M], number: int) -> Sequence[M] | None:
        if number % TURN:
            with suppress(Empty):
                return self._jobs.get(timeout=KEEP_CONNECTION_S)
        attempts.release()
        return self._jobs.get()
