"""Rows that a failover loses: what the server had confirmed to a task is noticed when it is gone."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

from conquiet.spark.errors import RowsLostError
from conquiet.spark.options import WriteOptions
from conquiet.spark.write.task_writer import TaskWriter
from conquiet.spark.write.writers import StreamBatchWriter, WrittenRows
from tests.with_spark.server_side import numbers_in
from tests.with_spark.test_task_writer import DATA, attempt_of, rows_of, send, task_writer


class LaggingReplica:
    """What a replica has that is some seconds behind: promoted, it has forgotten the rest."""

    def __init__(self, valkey, *keys: str) -> None:
        self._valkey = valkey
        self._kept = {key: valkey.dump(key) for key in keys}

    def promote(self) -> None:
        for key, value in self._kept.items():
            self._valkey.restore(key, 0, value, replace=True)


def batch_of(numbers: range) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows_of(numbers))


def send_rest(writer: TaskWriter, batch: pa.RecordBatch) -> None:
    writer.add(batch)
    writer.finish()


def test_a_task_whose_rows_a_failover_has_lost_fails_and_its_next_attempt_adds_them(
    valkey, valkey_url, stream
):
    attempt = attempt_of()
    options = WriteOptions.of({"url": valkey_url, "stream": stream})

    with task_writer(options, attempt) as writer:
        writer.add(batch_of(range(1_000)))
        [line] = [one._line for one in writer._writers.values()]
        line.connection.wait()
        [key] = writer.keys
        replica = LaggingReplica(valkey, stream, key)
        writer.add(batch_of(range(1_000, 2_000)))
        line.connection.wait()
        replica.promote()
        with pytest.raises(RowsLostError, match="has lost 1000 rows"):
            send_rest(writer, batch_of(range(2_000, 3_000)))
    send(valkey_url, rows_of(range(3_000)), attempt, stream=stream)

    assert numbers_in(valkey, stream) == list(range(3_000))


def test_a_write_whose_rows_were_lost_after_their_task_had_ended_is_not_committed(valkey, valkey_url, stream):
    attempt = attempt_of()
    options = WriteOptions.of({"url": valkey_url, "stream": stream})
    with task_writer(options, attempt) as writer:
        writer.add(batch_of(range(500)))
        writer.finish()
        replica = LaggingReplica(valkey, stream, *writer.keys)
        writer.add(batch_of(range(500, 1_000)))
        writer.finish()
        now_ms = time.time_ns() // 1_000_000
        message = WrittenRows(1_000, attempt.write_id, attempt.run, writer.keys, writer.records, now_ms)
    whole = StreamBatchWriter(options, DATA)

    replica.promote()
    with pytest.raises(RowsLostError, match="has lost 500 rows"):
        whole.commit([message, None])
    send(valkey_url, rows_of(range(1_000)), attempt, stream=stream)
    whole.commit([message, None])

    assert numbers_in(valkey, stream) == list(range(1_000))
