"""One attempt of one task: its rows, each to its stream."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from conquiet.errors import NotReplicatedError, QueueError
from conquiet.queue.connection import Client, key_beside, queue_error, server_of
from conquiet.spark.address import open_topic
from conquiet.spark.options import WriteOptions
from conquiet.spark.scripts import TaskKey, record_partitions
from conquiet.spark.task_context import Attempt
from conquiet.spark.wire.connection import ServerConnection
from conquiet.spark.write.stream_writers import OncePerIdWriter, OncePerTaskWriter, PlainWriter, StreamWriter
from conquiet.spark.write.targets import StreamTarget, Target
from conquiet.spark.write.task_target import TaskTarget


def open_target(client: Client, options: WriteOptions) -> Target:
    """Where the rows go.

    Raises:
        TopicError: the topic is not there.
    """
    address = options.address
    if options.task_envelope is not None:
        return TaskTarget(address.stream or "", options)
    if address.topic is None:
        return StreamTarget(address.stream or "", options)
    # A plain stream needs nothing of the MQ, whose import takes longer than a small write.
    from conquiet.spark.write.topic_target import TopicTarget

    return TopicTarget(open_topic(client, address.topic), options)


class TaskWriter:
    """One attempt of one task: a connection to each server that it needs, for as long as it runs."""

    def __init__(self, client: Client, target: Target, options: WriteOptions, attempt: Attempt) -> None:
        self._client = client
        self._target = target
        self._options = options
        self._attempt = attempt
        self._connections: dict[str, ServerConnection] = {}
        self._writers: dict[str, StreamWriter] = {}
        self._is_once_per_task = options.dedupe == "rows" and options.dedupe_column is None
        self._partitions: TaskPartitions | None = None
        if self._is_once_per_task and options.address.topic is not None:
            self._partitions = TaskPartitions(client, target.streams, attempt, options.dedupe_window_ms)
        #: The keys by which another attempt of the task knows what was added.
        self.keys: list[str] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Send the rows of one Arrow batch, each to its stream."""
        if self._partitions is not None and not self._writers:
            # As for the attempt before, also if the topic has grown since: each row to the same partition.
            self._target.spread_over(self._partitions.count())
        for rows in self._target.rows_by_stream(batch):
            writer = self._writers.get(rows.stream) or self._open_writer(rows.stream)
            writer.add(rows)

    def finish(self) -> None:
        """Wait until all rows are in their streams.

        Raises:
            RowsDifferError: another attempt has added rows that this one does not have, to whatever stream.
            NotReplicatedError: too few replicas have the rows; the next attempt adds none of them again.
        """
        if self._is_once_per_task:
            streams = self._target.streams if self._partitions is None else self._partitions.recorded()
            for stream in streams:
                if stream not in self._writers:
                    self._open_writer(stream)
        for writer in self._writers.values():
            writer.finish()
        if self._options.min_replicas:
            for stream in self._writers:
                self._wait_for_replicas(stream)

    def __enter__(self) -> TaskWriter:
        return self

    def __exit__(self, *_error: object) -> None:
        for connection in self._connections.values():
            connection.close()

    def _wait_for_replicas(self, stream: str) -> None:
        wanted, confirmed = self._options.min_replicas, [0]
        # On the connection that wrote: after a failover it is closed, and another server has other writes.
        connection = self._connections[server_of(self._client, stream)]
        connection.send(["WAIT", wanted, self._options.replica_timeout_ms], confirmed.append)
        connection.wait()
        if isinstance(confirmed[-1], Exception):
            raise queue_error("WAIT", confirmed[-1], stream=stream, group=None)
        if confirmed[-1] < wanted:
            raise NotReplicatedError(stream, confirmed=confirmed[-1], min_replicas=wanted, entry_ids=())

    def _open_writer(self, stream: str) -> StreamWriter:
        server, options = server_of(self._client, stream), self._options
        connection = self._connections.get(server) or ServerConnection(self._client, stream)
        self._connections[server] = connection
        writer: StreamWriter
        if options.dedupe_column is not None:
            keys = self._target.dedupe_keys(stream)
            writer = OncePerIdWriter(connection, stream, keys, options.dedupe_window_ms)
        elif options.dedupe == "off":
            writer = PlainWriter(connection, stream)
        else:
            if self._partitions is not None:
                # Before the first row: after a crash the next attempt learns from the record what was added.
                self._partitions.record(stream)
                if not self.keys:
                    self.keys.append(self._partitions.key)
            attempt = self._attempt
            key = key_beside(stream, f"spark:{attempt.write_id}:{attempt.task}")
            self.keys.append(key)
            task = TaskKey(stream, key, attempt.batch, options.dedupe_window_ms)
            writer = OncePerTaskWriter(connection, task, attempt.task)
        self._writers[stream] = writer
        return writer


class TaskPartitions:
    """What all attempts of one task agree on: which partitions they add to, out of how many.

    The server keeps it beside the first partition, as long as what it keeps of the task's rows.
    """

    def __init__(self, client: Client, streams: Sequence[str], attempt: Attempt, window_ms: int) -> None:
        self._client = client
        self._streams = streams
        self._attempt = attempt
        self._window_ms = window_ms
        self._count = len(streams)
        self.key = key_beside(streams[0], f"spark:{attempt.write_id}:{attempt.task}:partitions")

    def count(self) -> int:
        """How many partitions the topic had for the first attempt that added something; now, if none has."""
        self._count = self._record()[0]
        return self._count

    def recorded(self) -> list[str]:
        """The streams that attempts have added to, or were about to."""
        return [self._streams[partition] for partition in self._record()[1]]

    def record(self, stream: str) -> None:
        """Record that this attempt is about to add to a stream.

        Raises:
            QueueError: another attempt divides rows among another number of partitions.
        """
        agreed, _ = self._record(self._streams.index(stream))
        if agreed != self._count:
            raise QueueError(
                "XADD",
                stream=stream,
                group=None,
                reason=f"another attempt of the task spreads rows over {agreed} partitions, this one over "
                f"{self._count}: the topic has grown meanwhile, and the task must begin anew",
            )

    def _record(self, *partitions: int) -> tuple[int, list[int]]:
        return record_partitions(
            self._client,
            self.key,
            partitions,
            count=len(self._streams),
            batch=self._attempt.batch,
            window_ms=self._window_ms,
        )
