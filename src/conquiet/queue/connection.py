"""How the queue reaches a server: clients from URLs, and what it must know of a client it was handed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import SplitResult, urlsplit, urlunsplit

import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.connection import parse_url
from redis.exceptions import RedisClusterException, RedisError
from redis.retry import Retry
from redis.sentinel import Sentinel

from conquiet.errors import QueueError

Client = redis.Redis | RedisCluster

#: Replies as bytes, whatever the client was told to decode: an entry may hold anything.
AS_BYTES: dict[str, Any] = {"NEVER_DECODE": []}

#: Whatever redis-py raises; its cluster errors stand outside its own tree.
REDIS_ERRORS = (RedisError, RedisClusterException)

_SCHEMES = "redis://, rediss://, unix://, redis+sentinel://, rediss+sentinel://, redis+cluster:// or rediss+cluster://"


@contextmanager
def visible_errors(operation: str, *, stream: str, group: str | None) -> Iterator[None]:
    """Turn whatever redis-py raises into a `QueueError` with the original as its cause."""
    try:
        yield
    except REDIS_ERRORS as error:
        raise queue_error(operation, error, stream=stream, group=group) from error


def queue_error(operation: str, cause: Exception, *, stream: str, group: str | None) -> QueueError:
    """The `QueueError` that tells of a redis-py error."""
    return QueueError(operation, stream=stream, group=group, reason=f"{type(cause).__name__}: {cause}")


def add_entries(client: Client, entries: Iterable[tuple[bytes, bytes]]) -> list[str | Exception]:
    """Add encoded payloads to their streams in order, in one round trip; an id or an error for each."""
    pipeline = client.pipeline(transaction=False)
    for stream, data in entries:
        pipeline.execute_command("XADD", stream, "*", "data", data)
    replies: list[bytes | str | Exception] = pipeline.execute(raise_on_error=False)
    return [reply.decode() if isinstance(reply, bytes) else reply for reply in replies]


def open_client(url: str, *, block_ms: int = 5_000, **options: Any) -> Client:
    """Open a client that never retries by itself and whose socket outlasts a read of `block_ms`.

    Query parameters of the URL are redis-py's connection arguments and win over `options`.
    Sentinel: `redis+sentinel://user:password@host:26379,host2:26379/service/0?sentinel_password=…`.
    """
    parts = urlsplit(url)
    options = {"retry": Retry(NoBackoff(), 0), "socket_timeout": block_ms / 1000 + 5, **options}
    match parts.scheme:
        case "redis" | "rediss" | "unix":
            return redis.Redis.from_url(url, **options)
        case "redis+cluster" | "rediss+cluster":
            return RedisCluster.from_url(_plain(parts), **options)
        case "redis+sentinel" | "rediss+sentinel":
            return _open_sentinel(parts, options)
    raise ValueError(
        f"url must start with {_SCHEMES}, got {parts.scheme + '://…' if parts.scheme else 'no scheme'}"
    )


def unparsed_view(client: Client) -> Client:
    """A client over the same connections that leaves the reply of XREADGROUP as it came.

    redis-py's own parser folds an entry's repeated fields into one, which would hide a malformed entry.
    A cluster client is returned as it is: it has no way to share its connections.
    """
    if isinstance(client, RedisCluster):
        return client
    view = redis.Redis(connection_pool=client.connection_pool)
    view.set_response_callback("XREADGROUP", _as_it_came)
    return view


def forget_connections(client: Client) -> None:
    """Drop idle connections after an interrupt: the next call might get a reply that one of them is owed."""
    if isinstance(client, RedisCluster):
        client.disconnect_connection_pools()
    else:
        client.connection_pool.disconnect(inuse_connections=False)


def longest_block_ms(client: Client, key: str) -> int | None:
    """How long one blocking read may wait on this client, `None` for any time.

    A reply that comes after the socket's timeout is lost to the caller while its messages are pending, and
    redis-py may send the read again; so a read must end well before. (redis-py's default timeout is 5 s.)
    """
    timeout_s = _socket_timeout_s(client, key)
    if timeout_s is None:
        return None
    margin_s = max(0.2 * timeout_s, min(0.5, timeout_s / 2))
    return max(1, int((timeout_s - margin_s) * 1000))


def _open_sentinel(parts: SplitResult, options: dict[str, Any]) -> Client:
    credentials, _, hosts = parts.netloc.rpartition("@")
    service, _, db = parts.path.strip("/").partition("/")
    if not hosts or not service:
        raise ValueError(
            "a sentinel url must name hosts and service: redis+sentinel://host:26379,host2:26379/service/0"
        )
    scheme = "rediss" if parts.scheme.startswith("rediss") else "redis"
    netloc = f"{credentials}@sentinel" if credentials else "sentinel"
    arguments = options | parse_url(urlunsplit((scheme, netloc, f"/{db or 0}", parts.query, "")))
    arguments.pop("host")
    if arguments.pop("connection_class", None) is not None:
        arguments["ssl"] = True
    of_sentinels = {
        name.removeprefix("sentinel_"): arguments.pop(name)
        for name in ("sentinel_username", "sentinel_password")
        if name in arguments
    }
    shared = {name: arguments[name] for name in arguments if name.startswith(("ssl", "socket_", "retry"))}
    sentinel = Sentinel(
        [_host_and_port(host) for host in hosts.split(",")],
        sentinel_kwargs=shared | of_sentinels,
        **arguments,
    )
    master: redis.Redis = sentinel.master_for(service)
    return master


def _host_and_port(text: str) -> tuple[str, int]:
    host = urlsplit(f"//{text}")
    return host.hostname or "127.0.0.1", host.port or 26379


def _plain(parts: SplitResult) -> str:
    return urlunsplit(parts._replace(scheme=parts.scheme.removesuffix("+cluster")))


def _socket_timeout_s(client: Client, key: str) -> float | None:
    if isinstance(client, RedisCluster):
        client = client.get_redis_connection(client.get_node_from_key(key))
    pool = client.connection_pool
    if "socket_timeout" in pool.connection_kwargs:
        timeout: float | None = pool.connection_kwargs["socket_timeout"]
    else:
        timeout = pool.connection_class(**pool.connection_kwargs).socket_timeout
    return timeout


def _as_it_came(reply: Any, **_options: Any) -> Any:
    return reply
