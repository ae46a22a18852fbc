"""How much a group has before it: an explicit, bounded, read-only look."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from conquiet.queue.config import QueueConfig

#: Runs one Redis command and returns its reply with everything as bytes.
Call = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerBacklog:
    """One consumer of the group, as the server knows it."""

    name: str
    pending: int
    idle_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogStats:
    """A look at one stream and group at one moment; each figure is as fresh as its own command."""

    stream: str
    group: str
    #: Entries in the stream, finished ones too: Redis keeps them until they are trimmed.
    length: int
    #: Messages that the group has not been given yet; `None` if neither the server nor a bounded count knows.
    lag: int | None
    lag_source: Literal["server", "counted"] | None
    #: Messages delivered and not acked.
    pending: int
    #: Time since the oldest pending message was enqueued, by the server's clock.
    oldest_pending_age_ms: int | None
    #: Time since the oldest message that the group has not been given was enqueued.
    oldest_undelivered_age_ms: int | None
    consumers: tuple[ConsumerBacklog, ...]


def backlog_stats(call: Call, config: QueueConfig, *, count_limit: int) -> BacklogStats:
    """Ask the server; counts at most `count_limit` entries where it does not know the lag itself."""
    stream, group = config.stream_key.encode(), config.consumer_group.encode()
    group_info = _group_info(call, stream, group)
    last_delivered = _text(group_info["last-delivered-id"])
    oldest_pending = call("XPENDING", stream, group, "-", "+", 1, parse_detail=True)
    undelivered = call("XRANGE", stream, f"({last_delivered}", "+", "COUNT", 1)
    lag, source = _lag(call, stream, group_info, last_delivered, count_limit)
    seconds, microseconds = call("TIME")
    now_ms = int(seconds) * 1000 + int(microseconds) // 1000
    return BacklogStats(
        stream=config.stream_key,
        group=config.consumer_group,
        length=call("XLEN", stream),
        lag=lag,
        lag_source=source,
        pending=int(group_info["pending"]),
        oldest_pending_age_ms=_age_ms(now_ms, oldest_pending[0]["message_id"] if oldest_pending else None),
        oldest_undelivered_age_ms=_age_ms(now_ms, undelivered[0][0] if undelivered else None),
        consumers=_consumers(call, stream, group),
    )


def _group_info(call: Call, stream: bytes, group: bytes) -> Mapping[str, Any]:
    for info in map(_as_mapping, call("XINFO GROUPS", stream)):
        if info["name"] == group:
            return info
    # Redis itself says it best, and as a Redis error: NOGROUP; unless the group came back meanwhile.
    call("XPENDING", stream, group, "-", "+", 1, parse_detail=True)
    return _group_info(call, stream, group)


def _lag(
    call: Call, stream: bytes, group_info: Mapping[str, Any], last_delivered: str, count_limit: int
) -> tuple[int | None, Literal["server", "counted"] | None]:
    # Redis 7 and later know it, unless entries were deleted; Redis 6.2 does not have the field.
    if group_info.get("lag") is not None:
        return int(group_info["lag"]), "server"
    entries = call("XRANGE", stream, f"({last_delivered}", "+", "COUNT", count_limit + 1)
    if len(entries) > count_limit:
        return None, None
    return len(entries), "counted"


def _consumers(call: Call, stream: bytes, group: bytes) -> tuple[ConsumerBacklog, ...]:
    return tuple(
        ConsumerBacklog(name=_text(info["name"]), pending=int(info["pending"]), idle_ms=int(info["idle"]))
        for info in map(_as_mapping, call("XINFO CONSUMERS", stream, group))
    )


def _age_ms(now_ms: int, entry_id: bytes | str | None) -> int | None:
    if entry_id is None:
        return None
    # An id that somebody chose may lie in the future; an age does not.
    return max(0, now_ms - int(_text(entry_id).partition("-")[0]))


def _as_mapping(reply: Any) -> Mapping[str, Any]:
    pairs = reply.items() if isinstance(reply, Mapping) else zip(reply[::2], reply[1::2], strict=True)
    return {_text(name): value for name, value in pairs}


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
