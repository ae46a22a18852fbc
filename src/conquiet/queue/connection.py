"""How the queue reaches a server: clients from URLs, and calls whose failures are `QueueError`s."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.connection import parse_url
from redis.exceptions import ReadOnlyError, RedisClusterException, RedisError, ResponseError
from redis.retry import Retry
from redis.sentinel import Sentinel

from conquiet.errors import NoConnectionError, QueueError
from conquiet.masking import remember_secret, remember_url, scrub, scrubbed, shown
from conquiet.queue.no_connection import why_no_connection
from conquiet.queue.pool import POOL

Client = redis.Redis | RedisCluster
AsyncClient = redis.asyncio.Redis | redis.asyncio.RedisCluster

#: Replies as bytes, also from a client with decode_responses: an entry may have any bytes.
AS_BYTES: dict[str, Any] = {"NEVER_DECODE": []}

#: What redis-py raises; some of its cluster errors are not RedisErrors.
REDIS_ERRORS = (RedisError, RedisClusterException)
_UNANSWERED = (redis.ConnectionError, redis.TimeoutError)

_SCHEMES = "redis://, rediss://, unix://, redis+sentinel://, rediss+sentinel://, redis+cluster:// or rediss+cluster://"


class visible_errors:  # noqa: N801 -- reads as a function; a generator would cost each call a microsecond more
    """Turn what redis-py raises into a `QueueError` with the original as its cause."""

    __slots__ = ("_group", "_operation", "_stream")

    def __init__(self, operation: str, *, stream: str, group: str | None) -> None:
        self._operation, self._stream, self._group = operation, stream, group

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, REDIS_ERRORS):
            raise queue_error(self._operation, error, stream=self._stream, group=self._group) from error


def queue_error(operation: str, cause: Exception, *, stream: str, group: str | None) -> QueueError:
    """The `QueueError` for a redis-py error; the error itself is masked too, as its cause."""
    scrub(cause)
    reason = f"{type(cause).__name__}: {cause}"
    no_connection = why_no_connection(cause)
    if no_connection is not None:
        return NoConnectionError(
            operation, stream=stream, group=group, reason=f"{no_connection.value} ({reason})"
        )
    # Of a script the error has another class.
    if "used memory > 'maxmemory'" in reason:
        reason += " The server is full: drain and trim its streams, or raise its maxmemory"
    return QueueError(operation, stream=stream, group=group, reason=reason)


def run_command(client: Client, *command: Any, stream: str, group: str | None, **options: Any) -> Any:
    """As `execute`; what redis-py raises is a `QueueError`."""
    try:
        return execute(client, *command, **options)
    except REDIS_ERRORS as error:
        raise queue_error(command[0], error, stream=stream, group=group) from error


def execute(client: Client, *command: Any, **options: Any) -> Any:
    """Run one command, with its reply as bytes."""
    with in_step(client):
        return client.execute_command(*command, **AS_BYTES, **options)  # type: ignore[no-untyped-call]


class in_step:  # noqa: N801 -- as `visible_errors`
    """Keep requests and replies in step: no later call gets the reply of an interrupted one.

    After an interrupt (Ctrl-C, a timeout by a signal) the client's idle connections are dropped: redis-py has
    put back the one whose reply was not read. They are dropped, too, when they lead to what was the primary
    before a failover. After an outage of a cluster's node its nodes are looked up.
    """

    __slots__ = ("_client",)

    def __init__(self, client: Client) -> None:
        self._client = client

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            return
        if not isinstance(error, REDIS_ERRORS) or is_read_only(error):
            forget_connections(self._client)
        elif isinstance(self._client, RedisCluster) and isinstance(error, _UNANSWERED):
            # redis-py asks one node which keys a script or an XREADGROUP has. If that one is dead, no such
            # call ever comes to the server of its stream, and none of them looks the nodes up.
            with suppress(*REDIS_ERRORS):
                dead = self._client.get_default_node()
                self._client.nodes_manager.initialize()
                if self._client.get_default_node() == dead:
                    self._client.replace_default_node()


def is_read_only(error: BaseException) -> bool:
    """Whether the server is a replica, as a demoted primary; of a script Redis 6.2 says it in the text."""
    if isinstance(error, ReadOnlyError):
        return True
    return isinstance(error, ResponseError) and "READONLY" in str(error)


def check_primary(client: Client, replies: Iterable[object]) -> None:
    """Drop idle connections if an error among the replies of a pipeline says that they lead to a replica."""
    if any(isinstance(reply, Exception) and is_read_only(reply) for reply in replies):
        forget_connections(client)


def as_text(value: bytes | str) -> str:
    """A name of a reply as text; bytes that are not UTF-8 are shown with backslashes, never an error."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def key_beside(stream: str, suffix: str) -> str:
    """The key of something that belongs to a stream, in the same slot of a Redis Cluster."""
    # A tag of its own if it has none: "{orders}:dlq" hashes as "orders" does.
    opening = stream.find("{")
    has_tag = opening >= 0 and stream.find("}", opening) > opening + 1
    return f"{stream}:{suffix}" if has_tag else f"{{{stream}}}:{suffix}"


def drains_key(stream: str, group: str) -> str:
    """Where the drains of a group of a plain stream have their heartbeats."""
    return key_beside(stream, f"drains:{group}")


@scrubbed()
def open_client(url: str, *, block_ms: int = 5_000, **options: Any) -> Client:
    """Open a client that never retries by itself and whose socket outlasts a read of `block_ms`.

    Query parameters of the URL are redis-py's connection arguments and win over `options`.
    Sentinel: `redis+sentinel://user:password@host:26379,host2:26379/service/0?sentinel_password=…`.

    Examples:
        >>> with open_client(server.url) as opened:
        ...     opened.ping()
        True
    """
    options = {"retry": Retry(NoBackoff(), 0), **options}
    client: Client = _open(url, block_ms, options, _open_single, RedisCluster.from_url, Sentinel)
    return client


@scrubbed()
def open_async_client(url: str, *, block_ms: int = 5_000, **options: Any) -> AsyncClient:
    """As `open_client`, for an event loop; close it with `aclose()`.

    Examples:
        >>> import asyncio
        >>> async def ping():
        ...     opened = open_async_client(server.url)
        ...     try:
        ...         return await opened.ping()
        ...     finally:
        ...         await opened.aclose()
        >>> asyncio.run(ping())
        True
    """
    options = {"retry": AsyncRetry(NoBackoff(), 0), **options}
    # As many connections as a plain client may have: with redis-py's 100, more tasks than that would fail.
    single = partial(redis.asyncio.Redis.from_url, max_connections=_MOST_CONNECTIONS)
    kinds = (single, redis.asyncio.RedisCluster.from_url, AsyncSentinel)
    client: AsyncClient = _open(url, block_ms, options, *kinds)
    return client


def close_client(client: Client) -> None:
    """Close a client for good: redis-py would open a new connection with the next call."""
    client.close()
    for pool in _pools_of(client):
        pool.get_connection = _refuse_connection


def check_client(client: object) -> None:
    """Refuse what is no client for plain calls."""
    if isinstance(client, Client):
        return
    if isinstance(client, redis.asyncio.Redis | redis.asyncio.RedisCluster):
        raise TypeError(
            "client must be a redis.Redis or RedisCluster, not one of redis.asyncio: "
            "for that there are AsyncQueue and AsyncProducer"
        )
    remedy = "; `open_client(url)` makes one"
    raise TypeError(f"client must be a redis.Redis or RedisCluster, got {shown(client)}{remedy}")


def unparsed_view(client: Client) -> Client:
    """A client over the same connections that leaves the reply of XREADGROUP as it came.

    redis-py's own parser folds an entry's repeated fields into one, which would hide a malformed entry.
    A cluster client is returned as it is: it has no way to share its connections.
    """
    if isinstance(client, RedisCluster):
        return client
    view = redis.Redis(connection_pool=client.connection_pool)
    view.set_response_callback("XREADGROUP", lambda reply, **_options: reply)
    return view


def forget_connections(client: Client) -> None:
    """Drop idle connections: the next call might get a reply owed to one of them, or a demoted server."""
    # Idle ones alone, on a cluster too: other threads are in the middle of their calls.
    for pool in _pools_of(client):
        pool.disconnect(inuse_connections=False)


def _pools_of(client: Client) -> list[Any]:
    if not isinstance(client, RedisCluster):
        return [client.connection_pool]
    clients = (node.redis_connection for node in client.get_nodes())
    return [each.connection_pool for each in clients if each is not None]


def _refuse_connection(*_command: Any, **_options: Any) -> Any:
    raise RedisError("it is closed: close() was called, or its `with` block has ended")


def is_unanswered(error: QueueError) -> bool:
    """Whether no reply came: the server is unavailable, for every other call too."""
    return isinstance(error.__cause__, _UNANSWERED)


def server_of(client: Client, key: str) -> str:
    """The name of the server that has the key; empty if there is only one."""
    if not isinstance(client, RedisCluster):
        return ""
    node = client.get_node_from_key(key)
    return "" if node is None else str(node.name)


def longest_block_ms(client: Client, key: str) -> int | None:
    """How long one blocking read may wait on this client, `None` for any time.

    A reply that comes after the socket's timeout is lost to the caller while its messages are pending, and
    redis-py may send the read again; so a read must end well before. (redis-py's default timeout is 5 s.)
    """
    if isinstance(client, RedisCluster):
        client = client.get_redis_connection(client.get_node_from_key(key))
    pool = client.connection_pool
    if "socket_timeout" in pool.connection_kwargs:
        timeout_s: float | None = pool.connection_kwargs["socket_timeout"]
    else:
        timeout_s = pool.connection_class(**pool.connection_kwargs).socket_timeout
    if timeout_s is None:
        return None
    margin_s = max(0.2 * timeout_s, min(0.5, timeout_s / 2))
    return max(1, int((timeout_s - margin_s) * 1000))


_MOST_CONNECTIONS = 1 << 31


def _open_single(url: str, *, single_connection_client: bool = False, **options: Any) -> redis.Redis:
    # As `redis.Redis.from_url`, over a pool of ours. A thread has one connection at most: with redis-py's
    # bound of 100 the next thread that waits for a result would fail.
    pool = POOL.from_url(url, **{"max_connections": _MOST_CONNECTIONS, **options})
    client = redis.Redis(connection_pool=pool, single_connection_client=single_connection_client)
    client.auto_close_connection_pool = True
    return client


def _open(url: str, block_ms: int, options: dict[str, Any], single: Any, cluster: Any, sentinel: Any) -> Any:
    parts = _split(url, options)
    if parts.scheme.partition("+")[0] in ("redis", "rediss"):
        database = parts.path.strip("/")
        if "sentinel" in parts.scheme:
            database = database.partition("/")[2]
        # redis-py takes what is no number for database 0.
        if database and not database.isdecimal():
            raise ValueError(f"the number of the database in the url must be a number, got {database!r}")
    files = {**options, **dict(parse_qsl(parts.query))}
    # Else the first command fails with a "No such file" that does not say which.
    for name in ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile"):
        if files.get(name) and not Path(files[name]).exists():
            raise ValueError(f"{name}: there is no {files[name]}")
    options = {"socket_timeout": block_ms / 1000 + 5, **options}
    match parts.scheme:
        case "redis" | "rediss" | "unix":
            return single(url, **options)
        case "redis+cluster" | "rediss+cluster":
            scheme = parts.scheme.removesuffix("+cluster")
            return cluster(urlunsplit((scheme, *parts[1:])), **options)
        case "redis+sentinel" | "rediss+sentinel":
            service, arguments = _sentinel_arguments(parts, options)
            return sentinel(**arguments).master_for(service)
    got = f"{parts.scheme}://…" if "://" in url else "none; write redis://HOST:PORT/0"
    raise ValueError(f"url must start with {_SCHEMES}, got {got}")


def _split(url: str, options: Mapping[str, Any]) -> SplitResult:
    if not isinstance(url, str):
        of_none = ": is the variable set that it comes from?" if url is None else ""
        raise TypeError(f"url must be a str, as 'redis://127.0.0.1:6379/0', not {shown(url)}{of_none}")
    remember_url(url)
    for name in ("password", "sentinel_password"):
        remember_secret(options.get(name))
    try:
        parts = urlsplit(url)
        if not _is_cut_short(parts):
            return parts
    except ValueError:
        pass
    # Not in the handler above: its error quotes a part of the password.
    raise ValueError(
        "url cannot be read: its port must be a number, and special characters of its user name and "
        "password percent-encoded (/ is %2F, # is %23, ? is %3F, @ is %40, [ is %5B)"
    )


def _is_cut_short(parts: SplitResult) -> bool:
    """Whether a character of the credentials ended them, so that their rest is read as a host or a path."""
    if parts.scheme == "unix":
        is_cut = bool(parts.netloc) and "@" not in parts.netloc
    else:
        is_cut = "@" in parts.path
        for address in parts.netloc.rpartition("@")[2].split(","):
            _ = urlsplit(f"//{address}").port  # ValueError, if that is not a number
    has_bare_argument = any("=" not in argument for argument in parts.query.split("&") if parts.query)
    return is_cut or has_bare_argument or bool(parts.fragment)


def _sentinel_arguments(parts: SplitResult, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
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
    addresses = [urlsplit(f"//{host}") for host in hosts.split(",")]
    sentinels = [(address.hostname or "127.0.0.1", address.port or 26379) for address in addresses]
    return service, {"sentinels": sentinels, "sentinel_kwargs": shared | of_sentinels, **arguments}
