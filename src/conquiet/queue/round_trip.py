"""One command and its reply as it comes, in two thirds of the time that redis-py takes."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, TypeGuard

import redis.client
from hiredis import pack_command
from redis.exceptions import ResponseError

from conquiet.queue.connection import Client, execute
from conquiet.queue.pool import is_measured

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
    pool = client.connection_pool
    connection = pool.get_connection()
    try:
        packed = _packed(command)

        def send_and_read() -> Any:
            connection.send_packed_command(packed)
            return connection.read_response(disable_decoding=True)

        return connection.retry.call_with_retry(send_and_read, lambda _error: connection.disconnect())
    except ResponseError:
        raise
    except BaseException:
        # An interrupt: no later call may get the reply of this one.
        connection.disconnect()
        raise
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
