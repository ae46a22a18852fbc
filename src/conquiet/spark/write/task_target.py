"""The queue of a task as the target of a write: each row is one task, with the row as its arguments."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from conquiet.spark.options import WriteOptions
from conquiet.spark.write.row_hashes import hash_rows
from conquiet.spark.write.targets import StreamRows, payloads_of


class TaskTarget:
    """The stream of a queue's priority; `publish_tasks` has made what a worker needs beside it."""

    def __init__(self, stream: str, options: WriteOptions) -> None:
        self.streams = [stream]
        self._parts: list[str] = json.loads(options.task_envelope or "")
        self._max_bytes = options.task_max_bytes

    def rows_by_stream(self, batch: pa.RecordBatch) -> Iterator[StreamRows]:
        """All rows, as envelopes."""
        args = payloads_of(batch)
        before_id, before_args, end = self._parts
        # As those of any task: a time, and a random number that is counted on.
        now_ms, first = time.time_ns() // 1_000_000, secrets.randbits(60)
        ids = pa.array([f"{now_ms}-{first + number}" for number in range(len(args))], pa.string())
        entries = pc.binary_join_element_wise(f'{before_id}"', ids, f'"{before_args}', args, end, "")
        largest = pc.max(pc.binary_length(entries)).as_py() or 0
        if largest > self._max_bytes:
            raise ValueError(f"a row makes a task of {largest:,} bytes, the limit is {self._max_bytes:,}")
        # Of the arguments alone: another attempt at the row makes a task with another id, and adds neither.
        yield StreamRows(self.streams[0], entries, hash_rows(args), None)

    def dedupe_keys(self, stream: str) -> list[str]:
        """None: a task is known by its row."""
        return []

    def spread_over(self, count: int) -> None:
        """There is one stream only."""
