"""ReplicaWait: how many replicas must have a message before it counts as sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from redis.cluster import RedisCluster

from conquiet.arguments import check_non_negative_int, check_positive_int
from conquiet.errors import NotReplicatedError
from conquiet.queue.connection import Client, key_beside, longest_block_ms, server_of, visible_errors


@dataclass(frozen=True, slots=True)
class ReplicaWait:
    """Waits after a write, in one round trip, until so many replicas have confirmed it; 0: not at all."""

    min_replicas: int = 0
    timeout_ms: int = 1_000

    def __post_init__(self) -> None:
        check_non_negative_int("min_replicas", self.min_replicas)
        check_positive_int("replica_timeout_ms", self.timeout_ms)

    def check_connected(self, client: Client, streams: Iterable[str]) -> None:
        """Raise unless enough replicas are there to wait for; nothing is written.

        Raises:
            NotReplicatedError: too few replicas are connected.
        """
        if self.min_replicas:
            for stream, node in _nodes(client, streams):
                with visible_errors("INFO replication", stream=stream, group=None):
                    info = node.info("replication")
                states = [value.get("state") for value in info.values() if isinstance(value, dict)]
                online = states.count("online")
                if online < self.min_replicas:
                    raise NotReplicatedError(stream, confirmed=online, min_replicas=self.min_replicas)

    def after(self, client: Client, streams: Iterable[str], entry_ids: Sequence[str] = ()) -> None:
        """Wait until what was written to these streams before, on any connection, is replicated.

        Raises:
            NotReplicatedError: in time it was not; the entries are in their streams.
        """
        if self.min_replicas:
            for stream, node in _nodes(client, streams):
                self._wait(node, stream, entry_ids)

    def _wait(self, node: Client, stream: str, entry_ids: Sequence[str]) -> None:
        longest = longest_block_ms(node, stream)
        timeout_ms = self.timeout_ms if longest is None else min(self.timeout_ms, longest)
        with visible_errors("WAIT", stream=stream, group=None):
            pipeline = node.pipeline(transaction=False)
            # WAIT is about the writes of its own connection: this one comes after those of all the others.
            pipeline.execute_command("SET", key_beside(stream, "replicated"), "", "PX", 1)
            pipeline.execute_command("WAIT", self.min_replicas, timeout_ms)
            confirmed = pipeline.execute()[1]
        if confirmed < self.min_replicas:
            raise NotReplicatedError(
                stream, confirmed=confirmed, min_replicas=self.min_replicas, entry_ids=entry_ids
            )


def _nodes(client: Client, streams: Iterable[str]) -> list[tuple[str, Client]]:
    """Each server of these streams, with one of its streams."""
    by_server = {server_of(client, stream): stream for stream in streams}
    if not isinstance(client, RedisCluster):
        return [(stream, client) for stream in by_server.values()]
    return [
        (stream, client.get_redis_connection(client.get_node_from_key(stream)))
        for stream in by_server.values()
    ]
