"""One round trip and its replies as they come, in two thirds of the time that redis-py takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeGuard, TypeVar

import redis.client
from hiredis import pack_command
from redis.connection import Connection
from redis.exceptions import ResponseError

from conquiet.queue.connection import (
    Client,
    check_primary,
    execute,
    forget_connections,
    in_step,
    is_read_only,
)
from conquiet.queue.pool import is_measured

_T = TypeVar("_T")

#: So much of many commands is sent at once.
_PART_BYTES = 64 << 10

#: redis-py's own; `None` if it was replaced before, as tools do that trace every command.
_EXECUTE = (
    redis.Redis.execute_command
    if inspect.unwrap(redis.Redis.execute_command) is redis.Redis.execute_command
    and redis.Redis.execute_command.__module__ == redis.client.__name__
    else None
)

_LARGE_BYTES = 256 << 10


def execute_unparsed(client: Client, *command: Any) -> Any:
    """Run a command whose reply redis-py leaves as it is, such as EVALSHA and XADD, with its reply as bytes.

    It does what redis-py's `execute_command` does for it, over the same connections and with the same
    retries. A client that does more, as one that is traced, is asked itself.
    """
    if not _is_plain(client):
        return execute(client, *command)
    packed = _packed(command)

    def send_and_read(connection: Connection) -> Any:
        connection.send_packed_command(packed)
        return connection.read_response(disable_decoding=True)

    return _with_connection(client, send_and_read)


def add_entries(
    client: Client, entries: Iterable[tuple[bytes, bytes]], *options: str
) -> list[str | Exception | None]:
    """Add encoded payloads to their streams in order, in one round trip; an id or an error for each.

    Args:
        options: of XADD; with NOMKSTREAM, `None` is for an entry whose stream is not there.
    """
    commands = [("XADD", stream, *options, "*", "data", data) for stream, data in entries]
    replies: list[bytes | str | Exception | None]
    if _is_plain(client):
        replies = _execute_all(client, commands)
    else:
        pipeline = client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        with in_step(client):
            replies = pipeline.execute(raise_on_error=False)
    check_primary(client, replies)
    return [reply.decode() if isinstance(reply, bytes) else reply for reply in replies]


def _execute_all(client: redis.Redis, commands: Sequence[Any]) -> list[Any]:
    parts, size, packed = [], 0, []
    for command in commands:
        packed.append(pack_command(command))
        size += len(packed[-1])
        if size >= _PART_BYTES:
            parts.append(b"".join(packed))
            packed, size = [], 0
    if packed:
        parts.append(b"".join(packed))

    def send_and_read(connection: Connection) -> list[Any]:
        connection.send_packed_command(parts)
        replies: list[Any] = []
        for _ in commands:
            try:
                replies.append(connection.read_response(disable_decoding=True))
            except ResponseError as error:
                replies.append(error)
        return replies

    return _with_connection(client, send_and_read) if commands else []


def _with_connection(client: redis.Redis, send_and_read: Callable[[Any], _T]) -> _T:
    pool = client.connection_pool
    connection = pool.get_connection()
    try:
        reply: _T = connection.retry.call_with_retry(
            lambda: send_and_read(connection), lambda _error: connection.disconnect()
        )
    except ResponseError as error:
        if is_read_only(error):
            connection.disconnect()
            forget_connections(client)
        raise
    except BaseException:
        # An interrupt: no later call may get the reply of this one.
        connection.disconnect()
        raise
    else:
        return reply
    finally:
        pool.release(connection)


def _packed(command: tuple[Any, ...]) -> Sequence[bytes]:
    """The bytes of a command, of which a large one is not copied."""
    if not any(type(part) is bytes and len(part) > _LARGE_BYTES for part in command):
        return (pack_command(command),)
    packed = [f"*{len(command)}\r\n".encode()]
    for part in command:
        data = part if isinstance(part, bytes) else str(part).encode()
        packed += (f"${len(data)}\r\n".encode(), data, b"\r\n")
    return packed


def _is_plain(client: Client) -> TypeGuard[redis.Redis]:
    return (
        type(client) is redis.Redis
        and redis.Redis.execute_command is _EXECUTE
        and "execute_command" not in client.__dict__
        # Neither one connection for all calls, nor a cache in the client.
        and client.connection is None
        and getattr(client.connection_pool, "cache", None) is None
        and not is_measured()
    )
