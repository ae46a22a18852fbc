"""ReplicaWait: how many replicas must have a message, and on which disks, before it counts as sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.cluster import RedisCluster
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ReadOnlyError
from redis.exceptions import TimeoutError as RedisTimeoutError

from conquiet.arguments import check_non_negative_int, check_positive_int
from conquiet.errors import NotReplicatedError, QueueError
from conquiet.queue.connection import (
    Client,
    in_step,
    key_beside,
    longest_block_ms,
    server_of,
    visible_errors,
)

#: The replication id of each server: a promoted one, or one that was restarted, has a new one.
Primaries = dict[str, str | None]

#: After the write: the server has died, was demoted, or what was added has filled it.
_UNKNOWN = (RedisConnectionError, RedisTimeoutError, ReadOnlyError, OutOfMemoryError)


@dataclass(frozen=True, slots=True)
class ReplicaWait:
    """Waits after a write until so many replicas have confirmed it; 0: not at all.

    With `fsync` until it is in the append-only files of the primary and of these replicas.
    """

    min_replicas: int = 0
    timeout_ms: int = 1_000
    fsync: bool = False

    def __post_init__(self) -> None:
        check_non_negative_int("min_replicas", self.min_replicas)
        check_positive_int("replica_timeout_ms", self.timeout_ms)
        if not isinstance(self.fsync, bool):
            raise TypeError(f"fsync must be True or False, got {self.fsync!r}")

    @property
    def _waits(self) -> bool:
        return self.fsync or self.min_replicas > 0

    def before(self, client: Client, streams: Iterable[str], *, connected: bool = False) -> Primaries:
        """Ask, before a write, who the primaries of these streams are; `after` must find the same ones.

        Args:
            connected: raise unless enough replicas are there to wait for.

        Raises:
            NotReplicatedError: too few replicas are connected; nothing was written.
            QueueError: the server cannot tell what is on its disk; nothing was written.
        """
        primaries: Primaries = {}
        if self._waits:
            for stream, node in _nodes(client, streams):
                with visible_errors("INFO replication", stream=stream, group=None), in_step(client):
                    info = node.info() if self.fsync else node.info("replication")
                if self.fsync:
                    _check_fsync(stream, info)
                states = [value.get("state") for value in info.values() if isinstance(value, dict)]
                online = states.count("online")
                if connected and online < self.min_replicas:
                    raise NotReplicatedError(stream, confirmed=online, min_replicas=self.min_replicas)
                primaries[server_of(client, stream)] = info.get("master_replid")
        return primaries

    def after(
        self, client: Client, streams: Iterable[str], entry_ids: Sequence[str], primaries: Primaries
    ) -> None:
        """Wait until what was written to these streams since `before`, on any connection, is replicated.

        Raises:
            NotReplicatedError: in time it was not; or after an outage or a failover since, nobody knows.
        """
        if self._waits:
            for stream, node in _nodes(client, streams):
                cause: Exception | None = None
                try:
                    is_on_disk, confirmed = self._wait(
                        client, node, stream, primaries.get(server_of(client, stream))
                    )
                except QueueError as error:
                    # As `_check_fsync` said it before: it was turned off since.
                    is_off = self.fsync and "WAITAOF cannot be used" in str(error)
                    if not is_off and not isinstance(error.__cause__, _UNKNOWN):
                        raise
                    # By itself it would read as if nothing had been added.
                    is_on_disk, confirmed, cause = False, 0, error
                if confirmed < self.min_replicas or not is_on_disk:
                    raise NotReplicatedError(
                        stream,
                        confirmed=confirmed,
                        min_replicas=self.min_replicas,
                        entry_ids=entry_ids,
                        fsync=self.fsync,
                    ) from cause

    def _wait(self, client: Client, node: Client, stream: str, primary: str | None) -> tuple[bool, int]:
        longest = longest_block_ms(node, stream)
        timeout_ms = self.timeout_ms if longest is None else min(self.timeout_ms, longest)
        with visible_errors("WAIT", stream=stream, group=None), in_step(client):
            pipeline = node.pipeline(transaction=False)
            # WAIT is about the writes of its own connection: this one comes after those of all the others.
            pipeline.execute_command("SET", key_beside(stream, "replicated"), "", "PX", 1)
            if self.fsync:
                pipeline.execute_command("WAITAOF", 1, self.min_replicas, timeout_ms)
            else:
                pipeline.execute_command("WAIT", self.min_replicas, timeout_ms)
            pipeline.info("replication")
            _, reply, info = pipeline.execute()
        is_on_disk, confirmed = reply if self.fsync else (True, reply)
        # The connection may be to a server that was promoted since: its replicas confirm what that one has.
        return (bool(is_on_disk), int(confirmed)) if info.get("master_replid") == primary else (False, 0)


def _check_fsync(stream: str, info: Mapping[str, Any]) -> None:
    version = str(info.get("redis_version", "0"))
    if "valkey_version" not in info and tuple(map(int, version.split(".")[:2])) < (7, 2):
        problem = f"Redis {version} has no WAITAOF, which Redis 7.2 and Valkey have"
    elif not info.get("aof_enabled"):
        problem = "appendonly is off at the server"
    else:
        return
    reason = f"nothing was sent: fsync=True asks for messages on disk, but {problem}"
    raise QueueError("WAITAOF", stream=stream, group=None, reason=reason)


def _nodes(client: Client, streams: Iterable[str]) -> list[tuple[str, Client]]:
    """Each server of these streams, with one of its streams."""
    by_server = {server_of(client, stream): stream for stream in streams}
    if not isinstance(client, RedisCluster):
        return [(stream, client) for stream in by_server.values()]
    return [
        (stream, client.get_redis_connection(client.get_node_from_key(stream)))
        for stream in by_server.values()
    ]
