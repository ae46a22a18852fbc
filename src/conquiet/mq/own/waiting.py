"""Waiting: a worker waits for new entries of its partition, and can be woken at any moment."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Any

from redis.cluster import RedisCluster

from conquiet.mq.topics import Topic
from conquiet.queue.connection import REDIS_ERRORS


class Waiting:
    """The waits of one worker in one stream; nothing is delivered by them, so one that is cut loses nothing.

    One thread waits; `wake()` ends the wait, and every later one, from any thread or signal handler.
    """

    def __init__(self, topic: Topic, stream: str, group: str) -> None:
        self._topic = topic
        self._stream = stream
        self._group = group
        self._is_woken = False
        #: Of the connection that waits now. Set and read without a lock: the waiting thread sets it before it
        #: looks at `_is_woken`, the other one sets `_is_woken` before it looks here.
        self._socket: socket.socket | None = None
        #: Held while the socket is shut down, or goes back to the client: it may be another thread's then.
        self._is_changing = threading.Lock()
        #: Acquired until it is woken.
        self._sleeping = threading.Lock()
        self._sleeping.acquire()

    def wake(self) -> None:
        """End the wait, and let no other begin."""
        self._is_woken = True
        # A lock that is released by whom did not acquire it is the one signal that is safe in a handler.
        with suppress(RuntimeError):
            self._sleeping.release()
        # Never waits: if it is held, the wait has just ended by itself.
        if self._is_changing.acquire(blocking=False):
            try:
                if self._socket is not None:
                    with suppress(OSError):
                        self._socket.shutdown(socket.SHUT_RDWR)
            finally:
                self._is_changing.release()

    def sleep(self, wait_ms: int) -> None:
        """Wait for so long."""
        if self._sleeping.acquire(timeout=wait_ms / 1000):
            # It may be woken once more in this moment, and is released then.
            with suppress(RuntimeError):
                self._sleeping.release()

    def for_new(self, last_seen: str, block_ms: int) -> None:
        """Wait until the stream has an entry behind `last_seen`; reads nothing."""
        command = ("XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", self._stream, last_seen)
        try:
            self._run(command)
        except REDIS_ERRORS:
            # As the client does it: with its retries, and to the node that has the stream now.
            if not self._is_woken:
                self._topic.call(*command, group=self._group)

    def _run(self, command: tuple[Any, ...]) -> None:
        client = self._topic.client
        if isinstance(client, RedisCluster):
            client = client.get_redis_connection(client.get_node_from_key(self._stream))
        pool = client.connection_pool
        connection: Any = pool.get_connection()
        try:
            self._socket = getattr(connection, "_sock", None)
            if not self._is_woken:
                connection.send_command(*command)
                connection.read_response(disable_decoding=True)
        except BaseException:
            # Whatever it still gets is of no other call.
            connection.disconnect()
            raise
        finally:
            with self._is_changing:
                self._socket = None
            pool.release(connection)
