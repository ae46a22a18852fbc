"""Reads the facts that the doctor judges; writes nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from redis import Redis
from redis.cluster import RedisCluster
from redis.exceptions import ResponseError

from conquiet.mq.dead_letters.letters import DeadLetters
from conquiet.mq.look.admin import MqAdmin
from conquiet.mq.look.stats import GroupStats
from conquiet.mq.topics import Topics
from conquiet.operations.facts import GroupFacts, ServerFacts, TopicFacts
from conquiet.queue import Client, ConsumerBacklog
from conquiet.queue.connection import visible_errors

#: Settings of the server by which messages can be lost.
_SETTINGS = ("appendonly", "appendfsync", "save", "maxmemory-policy")
_NEEDED = ("XADD", "XREADGROUP", "XACK", "XCLAIM", "XPENDING", "XINFO", "XGROUP", "XTRIM", "EVAL", "EVALSHA")
_NEWER = ("XAUTOCLAIM", "XACKDEL", "XDELEX", "XNACK", "FCALL")


def look_at_servers(client: Client) -> list[ServerFacts]:
    """The server, or every primary of the cluster.

    Raises:
        QueueError: it cannot be reached, or forbids INFO or TIME.
    """
    with visible_errors("look at the server", stream="(server)", group=None):
        return [_look(address, node) for address, node in _nodes(client)]


def look_at_topic(client: Client, name: str) -> TopicFacts:
    """One topic or plain stream with all of its groups.

    Raises:
        TopicError: it is not there.
    """
    admin = MqAdmin(client)
    stats = admin.topic(name)
    topic = Topics(client).open(name)
    groups = tuple(_group_facts(admin, name, group) for group in admin.groups(name))
    return TopicFacts(
        name=name,
        length=stats.length,
        dead_letters=DeadLetters(topic).count(),
        has_retention=topic.policies.retention_length is not None or topic.policies.retention_ms is not None,
        groups=groups,
    )


def _group_facts(admin: MqAdmin, topic: str, group: GroupStats) -> GroupFacts:
    owners = admin.owners(topic, group.group)
    live = {member.name for member in owners.members}
    live |= {partition.owner for partition in owners.partitions if partition.owner is not None}
    return GroupFacts(
        name=group.group,
        pending=group.pending,
        lag=group.lag,
        oldest_pending_age_ms=group.oldest_pending_age_ms,
        oldest_undelivered_age_ms=group.oldest_undelivered_age_ms,
        consumers=_merged(group),
        live=frozenset(live),
    )


def _merged(group: GroupStats) -> tuple[ConsumerBacklog, ...]:
    """One line per consumer: a consumer of several partitions is as silent as where it was heard last."""
    merged: dict[str, ConsumerBacklog] = {}
    for partition in group.partitions:
        for consumer in partition.consumers:
            known = merged.get(
                consumer.name, ConsumerBacklog(name=consumer.name, pending=0, idle_ms=consumer.idle_ms)
            )
            merged[consumer.name] = ConsumerBacklog(
                name=consumer.name,
                pending=known.pending + consumer.pending,
                idle_ms=min(known.idle_ms, consumer.idle_ms),
            )
    return tuple(merged[name] for name in sorted(merged))


def _nodes(client: Client) -> list[tuple[str, Redis]]:
    if isinstance(client, RedisCluster):
        primaries = client.get_primaries()
        return [(f"{node.host}:{node.port}", client.get_redis_connection(node)) for node in primaries]
    settings = client.connection_pool.connection_kwargs
    if "path" in settings:
        return [(f"unix:{settings['path']}", client)]
    if "host" not in settings:
        return [("the primary", client)]
    return [(f"{settings['host']}:{settings['port']}", client)]


def _look(address: str, node: Redis) -> ServerFacts:
    info: Mapping[str, Any] = node.info("everything") or node.info()
    sent = time.time()
    seconds, microseconds = node.time()
    came = time.time()
    is_valkey = "valkey_version" in info
    config, refusal = _config(node)
    commands = _commands(node)
    return ServerFacts(
        address=address,
        product="Valkey" if is_valkey else "Redis",
        version=str(info["valkey_version"] if is_valkey else info["redis_version"]),
        redis_version=tuple(int(part) for part in re.findall(r"\d+", str(info["redis_version"]))[:3]),
        info=info,
        config=config,
        config_refusal=refusal,
        missing_commands=None if commands is None else tuple(n for n in _NEEDED if n not in commands),
        newer_commands=tuple(name for name in _NEWER if name in (commands or ())),
        clock_skew_ms=round((seconds + microseconds / 1e6 - (sent + came) / 2) * 1000),
        clock_error_ms=round((came - sent) / 2 * 1000) + 1,
    )


def _config(node: Redis) -> tuple[dict[str, str] | None, str | None]:
    found: dict[str, str] = {}
    try:
        for name in _SETTINGS:
            reply: Mapping[Any, Any] = node.config_get(name)
            found |= {_text(key): _text(value) for key, value in reply.items()}
    except ResponseError as error:
        # Forbidden by ACL, or not offered by a managed service: the findings say so.
        return None, "by ACL" if "NOPERM" in str(error) or "permission" in str(error) else str(error)
    return found, None


def _commands(node: Redis) -> set[str] | None:
    wanted = (*_NEEDED, *_NEWER)
    try:
        reply: Sequence[Any] | Mapping[str, Any] = node.execute_command("COMMAND INFO", *wanted)
    except ResponseError:
        return None
    rows = reply.values() if isinstance(reply, Mapping) else reply
    names = (row["name"] if isinstance(row, Mapping) else row[0] for row in rows if row)
    return {_text(name).upper() for name in names}


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
