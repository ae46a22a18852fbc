"""One attempt of one task: its rows, each to its stream."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from conquiet.errors import NotReplicatedError, QueueError
from conquiet.queue.connection import (
    Client,
    key_beside,
    longest_block_ms,
    queue_error,
    run_command,
    server_of,
)
from conquiet.spark.address import open_topic
from conquiet.spark.entry_ids import first_id_of
from conquiet.spark.errors import RowsDifferError
from conquiet.spark.options import WriteOptions
from conquiet.spark.outages import Patience, again_after_outages, find_servers
from conquiet.spark.scripts import (
    Run,
    TaskKey,
    begin_run,
    keep_rows_of_task,
    record_partitions,
    rows_left,
)
from conquiet.spark.task_context import Attempt
from conquiet.spark.wire.connection import ServerConnection
from conquiet.spark.write.field_target import FieldTarget
from conquiet.spark.write.stream_writers import (
    Line,
    OncePerIdWriter,
    OncePerTaskWriter,
    PlainWriter,
    StreamWriter,
)
from conquiet.spark.write.targets import StreamTarget, Target
from conquiet.spark.write.task_target import TaskTarget


def open_target(client: Client, options: WriteOptions, fields: Sequence[str] = ()) -> Target:
    """Where the rows go.

    Args:
        fields: the columns that become fields of entries.

    Raises:
        TopicError: the topic is not there.
    """
    address = options.address
    if fields:
        return FieldTarget(address.stream or "", options, fields)
    if options.task_envelope is not None:
        return TaskTarget(address.stream or "", options)
    if address.topic is None:
        return StreamTarget(address.stream or "", options)
    # A plain stream needs nothing of the MQ, whose import takes longer than a small write.
    from conquiet.spark.write.topic_target import TopicTarget

    return TopicTarget(open_topic(client, address.topic), options)


class TaskWriter:
    """One attempt of one task: a connection to each server that it needs, for as long as it runs."""

    def __init__(
        self, client: Client, target: Target, options: WriteOptions, attempt: Attempt, patience: Patience
    ) -> None:
        self._client = client
        self._target = target
        self._options = options
        self._attempt = attempt
        self._patience = patience
        self._connections: dict[str, ServerConnection] = {}
        #: Of each server, as it was when the connection was opened, if replicas are waited for.
        self._histories: dict[str, bytes] = {}
        self._writers: dict[str, StreamWriter] = {}
        self._is_once_per_task = options.dedupe == "rows" and options.dedupe_column is None
        self._partitions: TaskPartitions | None = None
        if options.dedupe == "rows" and options.address.topic is not None:
            self._partitions = TaskPartitions(client, target.streams, attempt, options.dedupe_window_ms)
        #: The keys by which another attempt of the task knows what was added.
        self.keys: list[str] = []

    @property
    def records(self) -> dict[str, int]:
        """Of each key by which another attempt knows rows: how many it has."""
        return dict(one.record for one in self._writers.values() if isinstance(one, OncePerTaskWriter))

    def add(self, batch: pa.RecordBatch) -> None:
        """Send the rows of one Arrow batch, each to its stream."""
        if self._partitions is not None and not self._writers:
            # As for the attempt before, also if the topic has grown since: each row to the same partition.
            self._target.spread_over(again_after_outages(self._partitions.count, self._patience))
        for rows in self._target.rows_by_stream(batch):
            self._writer_of(rows.stream).add(rows)
            self._trim(rows.stream)

    def finish(self) -> None:
        """Wait until all rows are in their streams.

        Raises:
            RowsDifferError: another attempt has added rows that this one does not have, to whatever stream.
            NotReplicatedError: too few replicas have the rows; the next attempt adds none of them again.
        """
        if self._is_once_per_task:
            streams = self._target.streams
            if self._partitions is not None:
                streams = again_after_outages(self._partitions.recorded, self._patience)
            for stream in streams:
                self._writer_of(stream)
        for stream, writer in self._writers.items():
            writer.finish()
            self._trim(stream)
        if self._options.min_replicas:
            for server, stream in {server_of(self._client, one): one for one in self._writers}.items():
                self._wait_for_replicas(server, stream)

    def _trim(self, stream: str) -> None:
        """Trim a stream as the options say; in whole nodes, which costs next to nothing."""
        options = self._options
        if options.max_len is None and options.min_id is None:
            return
        limit: tuple[str, Any] = ("MAXLEN", options.max_len)
        if options.min_id is not None:
            limit = ("MINID", str(first_id_of("minId", options.min_id)))
        how, threshold = limit
        command = ("XTRIM", stream.encode(), how, "~", threshold)
        trim = partial(run_command, self._client, *command, stream=stream, group=None)
        again_after_outages(trim, self._patience)

    def __enter__(self) -> TaskWriter:
        return self

    def __exit__(self, *_error: object) -> None:
        for connection in self._connections.values():
            connection.close()

    def _wait_for_replicas(self, server: str, stream: str) -> None:
        wanted, longest_ms = self._options.min_replicas, longest_block_ms(self._client, stream)
        timeout_ms = self._options.replica_timeout_ms
        # On the connection that wrote or found the rows: after a failover another server has other rows.
        connection, replies = self._connections[server], list[Any]()
        # WAIT is about the writes of its own connection, which may have found all rows there: this one comes
        # after those of the attempts before.
        for command in (
            ("SET", key_beside(stream, "replicated"), "", "PX", 1),
            ("WAIT", wanted, timeout_ms if longest_ms is None else min(timeout_ms, longest_ms)),
            ("INFO", "replication"),
        ):
            connection.send(command, replies.append)
        connection.wait()
        for reply in replies:
            if isinstance(reply, Exception):
                raise queue_error("WAIT", reply, stream=stream, group=None) from reply
        # It may have been demoted meanwhile, have lost rows, and have been promoted again.
        confirmed = replies[1] if _history_of(replies[2]) == self._histories[server] else 0
        if confirmed < wanted:
            raise NotReplicatedError(stream, confirmed=confirmed, min_replicas=wanted, entry_ids=())

    def _writer_of(self, stream: str) -> StreamWriter:
        if stream not in self._writers:
            self._writers[stream] = again_after_outages(partial(self._open_writer, stream), self._patience)
        return self._writers[stream]

    def _connection_to(self, stream: str) -> ServerConnection:
        server = server_of(self._client, stream)
        connection = self._connections.get(server)
        if connection is None or connection.is_closed:
            if connection is not None:
                if self._options.min_replicas:
                    # Another server may have other rows: the next attempt asks for all of them once more.
                    raise QueueError(
                        "WAIT", stream=stream, group=None, reason="the connection that wrote was lost"
                    )
                find_servers(self._client, stream)
                server = server_of(self._client, stream)
            connection = self._connections[server] = ServerConnection(self._client, stream)
            if self._options.min_replicas:
                connection.send(("INFO", "replication"), partial(self._note_history, server, stream))
                connection.wait()
        return connection

    def _note_history(self, server: str, stream: str, info: Any) -> None:
        if isinstance(info, Exception):
            raise queue_error("INFO replication", info, stream=stream, group=None) from info
        self._histories[server] = _history_of(info)

    def _open_writer(self, stream: str) -> StreamWriter:
        options = self._options
        line = Line(partial(self._connection_to, stream), self._patience)
        writer: StreamWriter
        if self._partitions is not None:
            # Before the first row: after a crash the next attempt learns from the record what was added.
            self._partitions.record(stream)
            if not self.keys:
                self.keys.append(self._partitions.key)
        if options.dedupe_column is not None:
            keys = self._target.dedupe_keys(stream)
            writer = OncePerIdWriter(line, stream, keys, options.dedupe_window_ms)
        elif options.dedupe == "off":
            writer = PlainWriter(line, stream)
        else:
            attempt = self._attempt
            key = _task_key(stream, attempt.write_id, attempt.task)
            if key not in self.keys:
                self.keys.append(key)
            run = begun_run(self._client, stream, attempt, options.dedupe_window_ms)
            task = TaskKey(stream, key, attempt.batch, options.dedupe_window_ms, attempt.task, run)
            writer = OncePerTaskWriter(line, task, attempt.task)
        return writer


def begun_run(client: Client, stream: str, attempt: Attempt, window_ms: int) -> Run | None:
    """The run of a write that has a name, with the rows of earlier runs at hand: whatever task had them."""
    if attempt.run is None:
        return None
    run = Run.of(stream, attempt.write_id, batch=attempt.batch, number=attempt.run, window_ms=window_ms)
    for task in begin_run(client, stream, run):
        # Tasks of this run do it together: each call takes the rows that come next.
        while keep_rows_of_task(client, stream, run, task, _task_key(stream, attempt.write_id, task)):
            pass
    return run


def check_no_rows_left(client: Client, streams: Sequence[str], attempt: Attempt, window_ms: int) -> None:
    """After all tasks of a run: whether it had all rows of the runs before it.

    Raises:
        RowsDifferError: it did not.
    """
    for stream in streams:
        run = begun_run(client, stream, attempt, window_ms)
        if run is not None and (extra := rows_left(client, stream, run)):
            raise RowsDifferError(stream=stream, task=None, extra=extra)


def _history_of(info: bytes) -> bytes:
    """By which a server names what it replicates; a promotion begins another one."""
    return next(line for line in info.splitlines() if line.startswith(b"master_replid:"))


def _task_key(stream: str, write_id: str, task: int) -> str:
    return key_beside(stream, f"spark:{write_id}:{task}")


class TaskPartitions:
    """What all attempts of one task agree on: which partitions they add to, out of how many.

    All tasks of a write that has a name agree on their number: a row may be another task's in its next run.
    The server keeps both beside the first partition, as long as what it keeps of the rows.
    """

    def __init__(self, client: Client, streams: Sequence[str], attempt: Attempt, window_ms: int) -> None:
        self._client = client
        self._streams = streams
        self._attempt = attempt
        self._window_ms = window_ms
        self._count = len(streams)
        self.key = key_beside(streams[0], f"spark:{attempt.write_id}:{attempt.task}:partitions")
        self._write_key = key_beside(streams[0], f"spark:{attempt.write_id}:partitions")
        self._agreed_key = self.key if attempt.run is None else self._write_key

    def count(self) -> int:
        """How many partitions the topic had for the first attempt that added something; now, if none has."""
        self._count = self._record(self._agreed_key)[0]
        return self._count

    def recorded(self) -> list[str]:
        """The streams that attempts of the task have added to, or were about to."""
        return [self._streams[partition] for partition in self._record(self.key)[1]]

    def recorded_by_all(self) -> list[str]:
        """Those of all tasks of a write that has a name."""
        return [self._streams[partition] for partition in self._record(self._write_key)[1]]

    def record(self, stream: str) -> None:
        """Record that this attempt is about to add to a stream.

        Raises:
            QueueError: another attempt divides rows among another number of partitions.
        """
        partition = self._streams.index(stream)
        agreed, _ = self._record(self._agreed_key, partition)
        if self._agreed_key != self.key:
            self._record(self.key, partition)
        if agreed != self._count:
            raise QueueError(
                "XADD",
                stream=stream,
                group=None,
                reason=f"another attempt of the task spreads rows over {agreed} partitions, this one over "
                f"{self._count}: the topic has grown meanwhile, and the task must begin anew",
            )

    def _record(self, key: str, *partitions: int) -> tuple[int, list[int]]:
        return record_partitions(
            self._client,
            key,
            partitions,
            count=self._count,
            batch=self._attempt.batch,
            window_ms=self._window_ms,
        )
