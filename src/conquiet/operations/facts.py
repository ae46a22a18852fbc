"""The facts that the doctor checks, and how they are read; nothing is written."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis import Redis
from redis.cluster import RedisCluster
from redis.exceptions import ResponseError

from conquiet.mq import DeadLetters, MqAdmin, Topic, Topics
from conquiet.mq.look.losses import topic_losses
from conquiet.mq.topics import name_of
from conquiet.queue import Client, ConsumerBacklog
from conquiet.queue.connection import as_text, visible_errors
from conquiet.queue.losses import Loss

#: Settings of the server by which messages can be lost.
_SETTINGS = ("appendonly", "appendfsync", "save", "maxmemory-policy")
_NEEDED = ("XADD", "XREADGROUP", "XACK", "XCLAIM", "XPENDING", "XINFO", "XGROUP", "XTRIM", "EVAL", "EVALSHA")
_NEWER = ("XAUTOCLAIM", "XACKDEL", "XDELEX", "XNACK", "FCALL")


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
    #: CONFIG GET of what can lose data; `None` where the server refused it.
    config: Mapping[str, str] | None
    #: Why it was refused.
    config_refusal: str | None = None
    #: Commands that conquiet needs and that the server does not have; `None` where it refused COMMAND.
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
    #: Consumers that have a lease or sent a heartbeat; a `QueueConsumer` of a plain stream does neither.
    live: frozenset[str] = field(default_factory=frozenset)
    #: How many partitions its live consumers may own together; `None` for all.
    most_owned: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """One topic or plain stream with its groups."""

    name: str
    partitions: int = 1
    length: int
    #: Messages that wait to be added.
    delayed: int = 0
    dead_letters: int
    has_retention: bool
    groups: tuple[GroupFacts, ...] = ()
    #: What failovers have lost of it, as far as is known.
    losses: tuple[Loss, ...] = ()


def server_facts(client: Client) -> list[ServerFacts]:
    """The server, or every primary of the cluster.

    Raises:
        QueueError: it cannot be reached, or forbids INFO or TIME.
    """
    with visible_errors("read the server's facts", stream="(server)", group=None):
        if isinstance(client, RedisCluster):
            return [
                _facts(f"{node.host}:{node.port}", client.get_redis_connection(node))
                for node in client.get_primaries()
            ]
        settings = client.connection_pool.connection_kwargs
        if "path" in settings:
            return [_facts(f"unix:{settings['path']}", client)]
        is_direct = "host" in settings
        return [_facts(f"{settings['host']}:{settings['port']}" if is_direct else "the primary", client)]


def topic_facts(client: Client, topic: Topic | str) -> TopicFacts:
    """One topic or plain stream with all of its groups.

    Raises:
        TopicError: it is not there.
    """
    admin = MqAdmin(client)
    stats, opened = admin.topic(topic), Topics(client).open(name_of(topic))
    policies, groups = opened.policies, []
    for group in admin.groups(topic):
        owners = admin.owners(topic, group.group)
        limits = [member.max_partitions for member in owners.members]
        is_limited = limits and None not in limits
        # A consumer of several partitions was active when it last was in any of them.
        consumers: dict[str, ConsumerBacklog] = {}
        for consumer in (consumer for partition in group.partitions for consumer in partition.consumers):
            known = consumers.get(consumer.name)
            consumers[consumer.name] = ConsumerBacklog(
                name=consumer.name,
                pending=consumer.pending + (known.pending if known else 0),
                idle_ms=min(consumer.idle_ms, known.idle_ms) if known else consumer.idle_ms,
            )
        groups.append(
            GroupFacts(
                name=group.group,
                pending=group.pending,
                lag=group.lag,
                oldest_pending_age_ms=group.oldest_pending_age_ms,
                oldest_undelivered_age_ms=group.oldest_undelivered_age_ms,
                consumers=tuple(consumers[name] for name in sorted(consumers)),
                live=owners.live,
                most_owned=sum(limit or 0 for limit in limits) if is_limited else None,
            )
        )
    return TopicFacts(
        name=opened.name,
        partitions=stats.partitions,
        length=stats.length,
        delayed=stats.delayed,
        dead_letters=DeadLetters(opened).count(),
        has_retention=policies.has_retention,
        groups=tuple(groups),
        losses=tuple(topic_losses(opened)),
    )


def _facts(address: str, node: Redis) -> ServerFacts:
    info: Mapping[str, Any] = node.info("everything") or node.info()
    sent = time.time()
    seconds, microseconds = node.time()
    came = time.time()
    is_valkey = "valkey_version" in info
    config: dict[str, str] = {}
    refusal = None
    try:
        for name in _SETTINGS:
            settings: Mapping[Any, Any] = node.config_get(name)
            config |= {as_text(key): as_text(value) for key, value in settings.items()}
    except ResponseError as error:
        # Forbidden by ACL, or not offered by a managed service.
        refusal = str(error)
        if "NOPERM" in refusal or "permission" in refusal:
            refusal = "by ACL"
    commands: set[str] | None = None
    try:
        reply: Sequence[Any] | Mapping[str, Any] = node.execute_command("COMMAND INFO", *_NEEDED, *_NEWER)
        rows = reply.values() if isinstance(reply, Mapping) else reply
        names = (row["name"] if isinstance(row, Mapping) else row[0] for row in rows if row)
        commands = {as_text(name).upper() for name in names}
    except ResponseError:
        pass
    return ServerFacts(
        address=address,
        product="Valkey" if is_valkey else "Redis",
        version=str(info["valkey_version"] if is_valkey else info["redis_version"]),
        redis_version=tuple(int(part) for part in re.findall(r"\d+", str(info["redis_version"]))[:3]),
        info=info,
        config=config if refusal is None else None,
        config_refusal=refusal,
        missing_commands=None if commands is None else tuple(n for n in _NEEDED if n not in commands),
        newer_commands=tuple(name for name in _NEWER if name in (commands or ())),
        clock_skew_ms=round((seconds + microseconds / 1e6 - (sent + came) / 2) * 1000),
        clock_error_ms=round((came - sent) / 2 * 1000) + 1,
    )
