"""ReplicaWait: how many replicas must have a message before it counts as sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
    """Waits after a write until so many replicas have confirmed it; 0: not at all."""

    min_replicas: int = 0
    timeout_ms: int = 1_000

    def __post_init__(self) -> None:
        check_non_negative_int("min_replicas", self.min_replicas)
        check_positive_int("replica_timeout_ms", self.timeout_ms)

    def before(self, client: Client, streams: Iterable[str], *, connected: bool = False) -> Primaries:
        """Ask, before a write, who the primaries of these streams are; `after` must find the same ones.

        Args:
            connected: raise unless enough replicas are there to wait for.

        Raises:
            NotReplicatedError: too few replicas are connected; nothing was written.
        """
        primaries: Primaries = {}
        if self.min_replicas:
            for stream, node in _nodes(client, streams):
                with visible_errors("INFO replication", stream=stream, group=None), in_step(client):
                    info = node.info("replication")
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
        if self.min_replicas:
            for stream, node in _nodes(client, streams):
                cause: Exception | None = None
                try:
                    confirmed = self._wait(client, node, stream, primaries.get(server_of(client, stream)))
                except QueueError as error:
                    if not isinstance(error.__cause__, _UNKNOWN):
                        raise
                    # By itself it would read as if nothing had been added.
                    confirmed, cause = 0, error
                if confirmed < self.min_replicas:
                    raise NotReplicatedError(
                        stream, confirmed=confirmed, min_replicas=self.min_replicas, entry_ids=entry_ids
                    ) from cause

    def _wait(self, client: Client, node: Client, stream: str, primary: str | None) -> int:
        longest = longest_block_ms(node, stream)
        timeout_ms = self.timeout_ms if longest is None else min(self.timeout_ms, longest)
        with visible_errors("WAIT", stream=stream, group=None), in_step(client):
            pipeline = node.pipeline(transaction=False)
            # WAIT is about the writes of its own connection: this one comes after those of all the others.
            pipeline.execute_command("SET", key_beside(stream, "replicated"), "", "PX", 1)
            pipeline.execute_command("WAIT", self.min_replicas, timeout_ms)
            pipeline.info("replication")
            _, confirmed, info = pipeline.execute()
        # The connection may be to a server that was promoted since: its replicas confirm what that one has.
        return int(confirmed) if info.get("master_replid") == primary else 0


def _nodes(client: Client, streams: Iterable[str]) -> list[tuple[str, Client]]:
    """Each server of these streams, with one of its streams."""
    by_server = {server_of(client, stream): stream for stream in streams}
    if not isinstance(client, RedisCluster):
        return [(stream, client) for stream in by_server.values()]
    return [
        (stream, client.get_redis_connection(client.get_node_from_key(stream)))
        for stream in by_server.values()
    ]
