"""Clients whose threads are interrupted between a request and its reply, as by Ctrl-C or SIGALRM."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import redis


class InterruptError(BaseException):
    """What a signal handler raises, as KeyboardInterrupt is."""


class Interrupts:
    """Decides which requests are interrupted; none until told."""

    def __init__(self) -> None:
        self._is_wanted: Callable[[], bool] = lambda: False
        #: How many were.
        self.count = 0

    def next_one(self) -> None:
        """Interrupt the next request of this thread, once it is sent."""
        here, before = threading.get_ident(), self.count
        self._is_wanted = lambda: threading.get_ident() == here and self.count == before

    def all_of(self, thread_name: str) -> None:
        """Interrupt every request of a thread from now on."""
        self._is_wanted = lambda: threading.current_thread().name == thread_name

    def strike(self) -> None:
        """Called when a request has been sent."""
        if self._is_wanted():
            self.count += 1
            raise InterruptError


@contextmanager
def interruptible_client(url: str) -> Iterator[tuple[redis.Redis, Interrupts]]:
    """A client with real connections, and what interrupts them."""
    interrupts = Interrupts()

    class Connection(redis.Connection):
        def send_packed_command(self, command, check_health=True):
            super().send_packed_command(command, check_health)
            interrupts.strike()

    pool = redis.ConnectionPool.from_url(url, connection_class=Connection)
    with redis.Redis(connection_pool=pool) as client:
        client.ping()
        yield client, interrupts
    pool.disconnect()
