"""The backlog of a group: lag, pending, ages; explicit, bounded, read-only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from redis.exceptions import ResponseError

from conquiet.arguments import check_positive_int
from conquiet.queue.batch_size import BATCH_BYTES
from conquiet.queue.connection import AS_BYTES, AsyncClient, Client, as_text, visible_errors
from conquiet.queue.pages import EntryPages
from conquiet.queue.steps import Steps, command, run_steps, run_steps_async

#: Of entries that are read to be counted.
_MOST_BYTES = 8 * BATCH_BYTES
#: Where the server does not know a lag, so many entries are counted at most, unless a call says otherwise.
COUNT_LIMIT = 1_000

#: Runs one Redis command and returns its reply with everything as bytes.
Call = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerBacklog:
    """One consumer of the group, by XINFO CONSUMERS."""

    name: str
    pending: int
    idle_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogStats:
    """The state of one stream and group; each figure is of the moment of its own command.

    Examples:
        >>> stats = peek_backlog(client, stream="not-there-yet", group="billing")
        >>> (stats.lag, stats.pending)  # not yet read, and read but not acked
        (0, 0)
    """

    stream: str
    group: str
    #: Entries in the stream, finished ones too: Redis keeps them until they are trimmed.
    length: int
    #: The last entry that was added, though it may be trimmed by now; "0-0" before the first.
    last_id: str
    #: The last entry that was delivered to the group; "0-0" before the first.
    last_delivered_id: str
    #: Undelivered messages; `None` if the server does not know and there are too many, or too large ones, to
    #: count.
    lag: int | None
    lag_source: Literal["server", "counted"] | None
    #: Messages delivered and not acked.
    pending: int
    #: Time since the oldest pending message was enqueued, by the server's clock.
    oldest_pending_age_ms: int | None
    #: Time since the oldest undelivered message was enqueued.
    oldest_undelivered_age_ms: int | None
    consumers: tuple[ConsumerBacklog, ...]


def backlog_stats(call: Call, stream: str, group: bytes, *, count_limit: int) -> BacklogStats:
    """Read the backlog; counts at most `count_limit` entries where the server does not know the lag.

    Args:
        group: as the server has it; a foreign one need not be UTF-8.
    """
    return run_steps(call, _backlog(stream, group, count_limit, is_group_needed=True))


def peek_backlog(client: Client, *, stream: str, group: str, count_limit: int = COUNT_LIMIT) -> BacklogStats:
    """As `RedisStreamsQueue.backlog_stats`, and creates neither stream nor group.

    For a group that does not exist yet, everything in the stream is lag: it will begin at the start.

    Examples:
        >>> peek_backlog(client, stream="not-there-yet", group="billing").pending
        0
    """
    check_positive_int("count_limit", count_limit)
    with visible_errors("peek", stream=stream, group=group):
        call = partial(client.execute_command, **AS_BYTES)
        return run_steps(call, _backlog(stream, group.encode(), count_limit, is_group_needed=False))


async def peek_backlog_async(
    client: AsyncClient, *, stream: str, group: str, count_limit: int = COUNT_LIMIT
) -> BacklogStats:
    """As `peek_backlog`, on an asyncio client.

    Examples:
        >>> import asyncio
        >>> async def pending():
        ...     opened = open_async_client(server.url)
        ...     try:
        ...         return (await peek_backlog_async(opened, stream="not-there-yet", group="billing")).pending
        ...     finally:
        ...         await opened.aclose()
        >>> asyncio.run(pending())
        0
    """
    check_positive_int("count_limit", count_limit)
    with visible_errors("peek", stream=stream, group=group):
        call = partial(client.execute_command, **AS_BYTES)
        steps = _backlog(stream, group.encode(), count_limit, is_group_needed=False)
        return await run_steps_async(call, steps)


async def has_nothing_to_read_async(
    client: AsyncClient, *, stream: str, group: str, counts_pending: bool
) -> bool:
    """Whether the server says in one command that the group has nothing; `False` if it does not know.

    Args:
        counts_pending: whether messages that were delivered and not acked are something.
    """
    with visible_errors("peek", stream=stream, group=group):
        call = partial(client.execute_command, **AS_BYTES)
        return await run_steps_async(call, _has_nothing(stream.encode(), group.encode(), counts_pending))


def _has_nothing(stream: bytes, group: bytes, counts_pending: bool) -> Steps[bool]:
    try:
        infos = yield command("XINFO GROUPS", stream)
    except ResponseError:
        # There is no stream, or it is something else: the whole of it is read, and says so.
        return False
    for info in map(as_mapping, infos):
        if info["name"] == group:
            return info.get("lag") == 0 and not (counts_pending and info["pending"])
    return False


def _backlog(
    stream_name: str, group: bytes, count_limit: int, *, is_group_needed: bool
) -> Steps[BacklogStats]:
    stream = stream_name.encode()
    info = yield from _group_info(stream, group, is_group_needed)
    length, last_id = 0, "0-0"
    if is_group_needed or (yield command("EXISTS", stream)):
        stream_info = as_mapping((yield command("XINFO STREAM", stream)))
        length, last_id = int(stream_info["length"]), as_text(stream_info["last-generated-id"])
    last_delivered = "0-0" if info is None else as_text(info["last-delivered-id"])
    undelivered = yield command("XRANGE", stream, f"({last_delivered}", "+", "COUNT", 1)
    oldest_pending: Any = None
    consumers: tuple[ConsumerBacklog, ...] = ()
    lag: int | None = length
    source: Literal["server", "counted"] | None = "counted"
    if info is not None:
        oldest_pending = yield command("XPENDING", stream, group, "-", "+", 1, parse_detail=True)
        lag, source = yield from _lag(stream, info, last_delivered, count_limit)
        consumers = tuple(
            ConsumerBacklog(name=as_text(row["name"]), pending=int(row["pending"]), idle_ms=int(row["idle"]))
            for row in map(as_mapping, (yield command("XINFO CONSUMERS", stream, group)))
        )
    seconds, microseconds = yield command("TIME")
    now_ms = int(seconds) * 1000 + int(microseconds) // 1000
    return BacklogStats(
        stream=stream_name,
        group=as_text(group),
        length=length,
        last_id=last_id,
        last_delivered_id=last_delivered,
        lag=lag,
        lag_source=source,
        pending=0 if info is None else int(info["pending"]),
        oldest_pending_age_ms=_age_ms(now_ms, oldest_pending[0]["message_id"] if oldest_pending else None),
        oldest_undelivered_age_ms=_age_ms(now_ms, undelivered[0][0] if undelivered else None),
        consumers=consumers,
    )


def _group_info(stream: bytes, group: bytes, is_needed: bool) -> Steps[Mapping[str, Any] | None]:
    while True:
        # XINFO of a missing stream is an error; where the group is optional, so is the stream.
        if not is_needed and not (yield command("EXISTS", stream)):
            return None
        for info in map(as_mapping, (yield command("XINFO GROUPS", stream))):
            if info["name"] == group:
                return info
        if not is_needed:
            return None
        # Raises the NOGROUP error of Redis itself, unless the group was created since.
        yield command("XPENDING", stream, group, "-", "+", 1, parse_detail=True)


def _lag(
    stream: bytes, group_info: Mapping[str, Any], last_delivered: str, count_limit: int
) -> Steps[tuple[int | None, Literal["server", "counted"] | None]]:
    # Redis 7 and later know it, unless entries were deleted; Redis 6.2 does not have the field.
    if group_info.get("lag") is not None:
        return int(group_info["lag"]), "server"
    # The server reads whole entries: not all of them if they are large.
    pages, counted, bytes_read = EntryPages(stream, first=f"({last_delivered}"), 0, 0
    while counted <= count_limit and bytes_read <= _MOST_BYTES:
        ids, size = yield from pages.next_ids(count_limit + 1 - counted)
        counted, bytes_read = counted + len(ids), bytes_read + size
        if pages.is_end:
            return counted, "counted"
    return None, None


def _age_ms(now_ms: int, entry_id: bytes | str | None) -> int | None:
    if entry_id is None:
        return None
    # An explicit id may be in the future.
    return max(0, now_ms - int(as_text(entry_id).partition("-")[0]))


def as_mapping(reply: Any) -> Mapping[str, Any]:
    """One row of an XINFO reply, which is flat or a mapping by the client's kind and protocol."""
    pairs = reply.items() if isinstance(reply, Mapping) else zip(reply[::2], reply[1::2], strict=True)
    return {as_text(name): value for name, value in pairs}
