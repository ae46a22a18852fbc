"""A connection of redis-py that a task uses for itself, to the server of one stream."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from redis.cluster import RedisCluster
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from conquiet.queue.connection import Client, visible_errors
from conquiet.queue.lua import Argument
from conquiet.spark.wire.texts import joined_bytes

#: While the server runs one command, the next is packed and sent.
_MOST_IN_FLIGHT = 2

_SMALLEST_BUFFER = 1 << 16


class ReplyTooLargeError(Exception):
    """A reply has more bytes than it may have; the connection is of no more use."""


class ServerConnection:
    """One connection out of the client's pool, with replies in the order of the commands.

    It is used with `send` and `wait`, or with `send_raw` and `receive_raw`, and closed in the end, since a
    reply may still be on its way.
    """

    def __init__(self, client: Client, stream: str) -> None:
        self._stream = stream
        self.is_closed = False
        with self._visible("connect"):
            if isinstance(client, RedisCluster):
                client = client.get_redis_connection(client.get_node_from_key(stream))
            self._pool: Any = client.connection_pool
            self._connection: Any = self._pool.get_connection()
        self._on_replies: deque[Callable[[Any], None]] = deque()
        # Behind raw commands an ECHO: the end of the replies is found by its text, without parsing them.
        token = secrets.token_hex(16)
        self._echo = self.pack("ECHO", token)
        self._end = np.frombuffer(f"${len(token)}\r\n{token}\r\n".encode(), dtype=np.uint8)
        self._buffer_size = _SMALLEST_BUFFER

    def send(
        self,
        command: Sequence[Argument],
        on_reply: Callable[[Any], None],
        packed: pa.StringArray | None = None,
    ) -> None:
        """Send one command; `on_reply` is called by a later call, an error reply as an exception.

        Args:
            packed: further arguments, as `packed_texts` makes them.
        """
        while len(self._on_replies) >= _MOST_IN_FLIGHT:
            self._receive()
        start, more = self.pack(*command), memoryview(b"")
        if packed is not None:
            # It begins with the number of its arguments.
            _, newline, rest = start.partition(b"\r\n")
            start = b"*%d" % (len(command) + len(packed)) + newline + rest
            more = joined_bytes(packed)
        with self._visible("send"):
            self._connection.send_packed_command([start, more])
        self._on_replies.append(on_reply)

    def wait(self) -> None:
        while self._on_replies:
            self._receive()

    def pack(self, *command: Argument) -> bytes:
        """A command as `send_raw` takes it."""
        return b"".join(self._connection.pack_command(*command))

    def send_raw(self, commands: bytes | memoryview) -> None:
        """Send commands, whose replies `receive_raw` returns together."""
        with self._visible("send"):
            self._connection.send_packed_command([commands, self._echo])

    def receive_raw(self, most_bytes: int | None = None) -> NDArray[np.uint8]:
        """The bytes of the replies to one `send_raw`: parsing entry by entry takes three times as long.

        Raises:
            ReplyTooLargeError: there are more than `most_bytes` of them.
        """
        with self._visible("receive"):
            try:
                return self._read_to_end(most_bytes)
            except TimeoutError as error:
                raise RedisTimeoutError(f"no reply in time: {error}") from error
            except OSError as error:
                raise RedisConnectionError(f"the connection was lost: {error}") from error

    def close(self) -> None:
        """Drop it, with all replies that are still to come."""
        if not self.is_closed:
            self.is_closed = True
            self._on_replies.clear()
            self._connection.disconnect()
            self._pool.release(self._connection)

    def _receive(self) -> None:
        with self._visible("receive"):
            try:
                reply = self._connection.read_response(disable_decoding=True)
            except ResponseError as error:
                reply = error
        self._on_replies.popleft()(reply)

    def _read_to_end(self, most_bytes: int | None) -> NDArray[np.uint8]:
        # redis-py has no public way to its socket.
        socket: Any = self._connection._sock
        end = self._end
        buffer: Any = np.empty(self._buffer_size, dtype=np.uint8)
        filled = 0
        while True:
            if filled == len(buffer):
                buffer = np.concatenate([buffer, np.empty(len(buffer), dtype=np.uint8)])
            received = socket.recv_into(memoryview(buffer)[filled:])
            if not received:
                raise ConnectionError("the server closed it")
            filled += received
            if most_bytes is not None and filled > most_bytes:
                raise ReplyTooLargeError
            if filled >= len(end) and np.array_equal(buffer[filled - len(end) : filled], end):
                self._buffer_size = max(_SMALLEST_BUFFER, filled + filled // 8)
                reply: NDArray[np.uint8] = buffer[: filled - len(end)]
                return reply

    def _visible(self, operation: str) -> Any:
        return visible_errors(operation, stream=self._stream, group=None)
