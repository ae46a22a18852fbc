"""A process that does what a task does to a million rows, and prints by how many megabytes it grew."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from conquiet.spark.columns import SCHEMA
from conquiet.spark.options import ReadOptions, WriteOptions
from conquiet.spark.outages import Patience
from conquiet.spark.read.batch_reader import StreamBatchReader
from conquiet.spark.task_context import Attempt
from conquiet.spark.write.task_writer import TaskWriter, open_target

_BATCH = 10_000


def read(url: str, stream: str, batches: int | None = None) -> None:
    """Read batches and drop them."""
    options = ReadOptions.of({"url": url, "stream": stream, "rowsPerSplit": str(10**9)})
    reader = StreamBatchReader(options, SCHEMA)
    for split in reader.partitions():
        for number, _ in enumerate(reader.read(split), 1):
            if number == batches:
                return


def write(url: str, stream: str, batches: int = 100) -> None:
    """Write batches as Spark passes them."""
    target = f"{stream}-copy"
    options = WriteOptions.of({"url": url, "stream": target})
    with (
        options.address.connect() as client,
        TaskWriter(
            client, open_target(client, options), options, Attempt(f"bench-{batches}", 0, 0), Patience(0)
        ) as writer,
    ):
        for batch in _batches(batches):
            writer.add(batch)
        writer.finish()
        client.delete(target, *writer.keys)


def _batches(count: int) -> Iterator[pa.RecordBatch]:
    for batch in range(count):
        texts = [f'{{"number":{batch * _BATCH + number},"pad":"{"x" * 170}"}}' for number in range(_BATCH)]
        yield pa.RecordBatch.from_arrays([pa.array(texts)], names=["data"])


def _status_mb(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise LookupError(f"/proc/self/status has no {field}")


if __name__ == "__main__":
    _, work, url, stream = sys.argv
    run = {"read": read, "write": write}[work]
    run(url, stream, 10)
    gc.collect()
    baseline = _status_mb("VmRSS")
    run(url, stream)
    print(_status_mb("VmHWM") - baseline)
