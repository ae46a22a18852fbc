"""Facts that the doctor judges: read elsewhere, so that the judging needs no server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from conquiet.queue import ConsumerBacklog


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """One server, or one primary of a cluster."""

    address: str
    #: "Redis" or "Valkey".
    product: str
    version: str
    #: The Redis version that it is compatible with, as numbers.
    redis_version: tuple[int, ...]
    #: Everything of INFO, as redis-py parses it.
    info: Mapping[str, object]
    #: CONFIG GET of what can lose data; `None` where the server refused to tell.
    config: Mapping[str, str] | None
    #: Why it refused.
    config_refusal: str | None = None
    #: Commands that conquiet needs and that the server does not have; `None` where it refused to tell.
    missing_commands: tuple[str, ...] | None = ()
    #: Newer commands that it has.
    newer_commands: tuple[str, ...] = ()
    #: The server's clock minus this process' clock.
    clock_skew_ms: int
    #: How far that figure may be off: half of the round trip.
    clock_error_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """One consumer group of a topic or a plain stream."""

    name: str
    pending: int
    lag: int | None
    oldest_pending_age_ms: int | None
    oldest_undelivered_age_ms: int | None
    consumers: tuple[ConsumerBacklog, ...] = ()
    #: Consumers that hold a lease or have told that they live; a plain stream has no such register.
    live: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """One topic or plain stream with its groups."""

    name: str
    length: int
    dead_letters: int
    has_retention: bool
    groups: tuple[GroupFacts, ...] = ()
