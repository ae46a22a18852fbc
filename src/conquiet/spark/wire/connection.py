"""A connection of its own to the node of one stream: commands as bytes, replies as they came."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from redis.cluster import RedisCluster
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from conquiet.queue.connection import Client, visible_errors

Bytes = bytes | memoryview

_SMALLEST_BUFFER = 1 << 16


def command(*parts: bytes | str | int) -> bytes:
    """One command in the protocol's form."""
    encoded = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"*%d\r\n%s" % (len(encoded), b"".join(bulk(part) for part in encoded))


def bulk(part: bytes) -> bytes:
    """One argument in the protocol's form."""
    return b"$%d\r\n%s\r\n" % (len(part), part)


class Wire:
    """Sends and receives in order; whoever sends must also receive. Not shared between threads."""

    def __init__(self, client: Client, stream: str) -> None:
        self._stream = stream
        with self._visible("connect"):
            pool = node_of(client, stream).connection_pool
            self._connection: Any = pool.get_connection()
        # A mark behind each raw reply: its end is found without parsing it.
        self._mark = secrets.token_hex(16).encode()
        self._trailer = np.frombuffer(bulk(self._mark), dtype=np.uint8)
        self._echo = command("ECHO", self._mark)
        self._size = _SMALLEST_BUFFER

    def send(self, parts: Iterable[Bytes]) -> None:
        """Send bytes that are commands already."""
        with self._visible("send"):
            self._connection.send_packed_command(list(parts))

    def receive(self) -> Any:
        """The next reply, read by redis-py; an error reply is returned, not raised."""
        with self._visible("receive"):
            try:
                return self._connection.read_response(disable_decoding=True)
            except ResponseError as error:
                return error

    def ask(self, packed: bytes) -> None:
        """Send one command whose reply `raw_reply` will return."""
        self.send([packed + self._echo])

    def ask_many(self, packed: Bytes) -> None:
        """Send many commands whose replies `raw_reply` will return together."""
        self.send([packed, self._echo])

    def raw_reply(self) -> NDArray[np.uint8]:
        """The bytes of one reply that was asked for with `ask`."""
        with self._visible("receive"):
            try:
                return self._read_to_trailer()
            except TimeoutError as error:
                raise RedisTimeoutError(f"no reply in time: {error}") from error
            except OSError as error:
                raise RedisConnectionError(f"the connection was lost: {error}") from error

    def close(self) -> None:
        """Drop the connection: a reply that nobody waits for must not be read by the next owner."""
        self._connection.disconnect()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read_to_trailer(self) -> NDArray[np.uint8]:
        socket: Any = self._connection._sock
        trailer = self._trailer
        buffer: Any = np.empty(self._size, dtype=np.uint8)
        filled = 0
        while True:
            if filled == len(buffer):
                buffer = np.concatenate([buffer, np.empty(len(buffer), dtype=np.uint8)])
            received = socket.recv_into(memoryview(buffer)[filled:])
            if not received:
                raise ConnectionError("the server closed it")
            filled += received
            if filled >= len(trailer) and np.array_equal(buffer[filled - len(trailer) : filled], trailer):
                self._size = max(_SMALLEST_BUFFER, filled + filled // 8)
                reply: NDArray[np.uint8] = buffer[: filled - len(trailer)]
                return reply

    def _visible(self, operation: str) -> Any:
        return visible_errors(operation, stream=self._stream, group=None)


def node_of(client: Client, stream: str) -> Any:
    """The client of the one server that holds the stream."""
    if isinstance(client, RedisCluster):
        return client.get_redis_connection(client.get_node_from_key(stream))
    return client
