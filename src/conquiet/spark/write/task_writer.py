"""One attempt of one task: its rows, each to its stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from conquiet.errors import QueueError
from conquiet.queue.connection import Client, key_beside
from conquiet.spark.address import open_topic
from conquiet.spark.options import WriteOptions
from conquiet.spark.task_context import Attempt
from conquiet.spark.wire.connection import node_of
from conquiet.spark.wire.node_wire import NodeWire
from conquiet.spark.write.stream_writers import Lane, NamedLane, PlainLane, TaskLane
from conquiet.spark.write.targets import StreamTarget, Target
from conquiet.spark.write.task_partitions import TaskRecord

if TYPE_CHECKING:
    from types import TracebackType


def open_target(client: Client, options: WriteOptions) -> Target:
    """Where the rows go.

    Raises:
        TopicError: the topic is not there.
    """
    if options.place.topic is None:
        return StreamTarget(options.place.stream or "", options)
    # A plain stream needs nothing of the MQ, whose import takes longer than a small write.
    from conquiet.spark.write.topic_target import TopicTarget

    return TopicTarget(open_topic(client, options.place.topic), options)


class TaskWriter:
    """One attempt of one task: a connection to each server that it needs, for as long as it runs."""

    def __init__(self, client: Client, target: Target, options: WriteOptions, attempt: Attempt) -> None:
        self._client = client
        self._target = target
        self._options = options
        self._attempt = attempt
        self._nodes: dict[int, NodeWire] = {}
        self._lanes: dict[str, Lane] = {}
        self._record = self._open_record()
        self._count = len(target.streams)
        self.keys: list[str] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Send the rows of one Arrow batch, each to its stream."""
        if self._record is not None and not self._lanes:
            # As for the attempt before, also if the topic has grown since: each row to the same partition.
            self._count = self._record.count()
            self._target.spread_over(self._count)
        for load in self._target.loads(batch):
            if load.stream not in self._lanes:
                self._lanes[load.stream] = self._open_lane(load.stream)
            self._lanes[load.stream].add(load)

    def finish(self) -> None:
        """Wait until all rows are in their streams.

        Raises:
            RowsDifferError: another attempt has added rows that this one does not have, to whatever stream.
        """
        for stream in self._streams_of_others():
            self._lanes[stream] = self._open_lane(stream)
        for lane in self._lanes.values():
            lane.finish()

    def __enter__(self) -> TaskWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self._nodes.values():
            node.close()

    def _open_lane(self, stream: str) -> Lane:
        node, options = self._node(stream), self._options
        if options.dedupe_column is not None:
            return NamedLane(node, stream, self._target.dedupe_keys(stream), options.dedupe_window_ms)
        if options.dedupe == "off":
            return PlainLane(node, stream)
        if self._record is not None:
            self._note(self._record, stream)
        key = key_beside(stream, f"spark:{self._attempt.write_id}:{self._attempt.task}")
        self.keys.append(key)
        return TaskLane(node, stream, key, self._attempt, options.dedupe_window_ms)

    def _open_record(self) -> TaskRecord | None:
        options = self._options
        if options.place.topic is None or options.dedupe == "off" or options.dedupe_column is not None:
            return None
        return TaskRecord(self._client, self._target.streams, self._attempt, options.dedupe_window_ms)

    def _note(self, record: TaskRecord, stream: str) -> None:
        # Before the first row: an attempt that comes after a crash looks there.
        agreed = record.note(stream)
        if record.key not in self.keys:
            self.keys.append(record.key)
        if agreed != self._count:
            raise QueueError(
                "XADD",
                stream=stream,
                group=None,
                reason=f"another attempt of the task spreads rows over {agreed} partitions, this one over "
                f"{self._count}: the topic has grown meanwhile, and the task must begin anew",
            )

    def _streams_of_others(self) -> list[str]:
        if self._record is not None:
            written = self._record.noted()
        elif self._options.dedupe == "off" or self._options.dedupe_column is not None:
            written = []
        else:
            written = self._target.streams
        return [stream for stream in written if stream not in self._lanes]

    def _node(self, stream: str) -> NodeWire:
        server = id(node_of(self._client, stream))
        if server not in self._nodes:
            self._nodes[server] = NodeWire(self._client, stream)
        return self._nodes[server]
