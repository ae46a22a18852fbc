"""One attempt of one task whose rows go to several topics: each row to the one in its column `topic`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from conquiet.queue.connection import Client
from conquiet.spark.options import WriteOptions
from conquiet.spark.outages import Patience, again_after_outages
from conquiet.spark.scripts import record_names
from conquiet.spark.task_context import Attempt
from conquiet.spark.write.targets import utf8_of
from conquiet.spark.write.task_writer import TaskWriter, open_target

#: The column that names a row's topic.
TOPIC = "topic"


class TopicsWriter:
    """A `TaskWriter` for each topic; which topics the attempts of a task have added to is recorded."""

    def __init__(self, client: Client, options: WriteOptions, attempt: Attempt, patience: Patience) -> None:
        self._client = client
        self._options = options
        self._attempt = attempt
        self._patience = patience
        self._writers: dict[str, TaskWriter] = {}
        self._open = ExitStack()
        self._is_once_per_task = options.dedupe == "rows" and options.dedupe_column is None
        self._record = TopicsRecord(client, attempt, options.dedupe_window_ms)

    @property
    def keys(self) -> list[str]:
        """The keys by which another attempt of the task knows what was added."""
        keys = [key for writer in self._writers.values() for key in writer.keys]
        return [self._record.key, *keys] if keys else []

    @property
    def records(self) -> dict[str, int]:
        """Of each key by which another attempt knows rows: how many it has."""
        return {key: rows for writer in self._writers.values() for key, rows in writer.records.items()}

    def add(self, batch: pa.RecordBatch) -> None:
        """Send the rows of one Arrow batch, each to its topic."""
        topics = utf8_of(batch.column(TOPIC), TOPIC)
        if topics.null_count:
            raise ValueError("a row has null as its topic")
        for topic in pc.unique(topics).to_pylist():
            self._writer_of(topic).add(batch.filter(pc.equal(topics, topic)))

    def finish(self) -> None:
        """Wait until all rows are in their topics; the errors are those of `TaskWriter.finish`."""
        if self._is_once_per_task:
            # An attempt before may have added rows to topics for which this one has none.
            for topic in again_after_outages(self._record.of_task, self._patience):
                self._writer_of(topic)
        for writer in self._writers.values():
            writer.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def _writer_of(self, topic: str) -> TaskWriter:
        writer = self._writers.get(topic)
        if writer is None:
            if self._is_once_per_task:
                again_after_outages(partial(self._record.add, topic), self._patience)
            options = of_topic(self._options, topic)
            target = again_after_outages(partial(open_target, self._client, options), self._patience)
            opened = TaskWriter(self._client, target, options, self._attempt, self._patience)
            writer = self._writers[topic] = self._open.enter_context(opened)
        return writer


class TopicsRecord:
    """Which topics the attempts of a task, and of all tasks of a named write, have added to."""

    def __init__(self, client: Client, attempt: Attempt, window_ms: int) -> None:
        self._client = client
        self._attempt = attempt
        self._window_ms = window_ms
        self.key = f"conquiet:spark:{attempt.write_id}:{attempt.task}:topics"
        self._write_key = f"conquiet:spark:{attempt.write_id}:topics"

    def add(self, topic: str) -> None:
        """Before the first row: after a crash the next attempt learns from the record what was added."""
        self._run(self.key, topic)
        if self._attempt.run is not None:
            self._run(self._write_key, topic)

    def of_task(self) -> list[str]:
        """Those of all attempts of the task."""
        return self._run(self.key)

    def of_write(self) -> list[str]:
        """Those of all tasks of a write that has a name."""
        return self._run(self._write_key)

    def _run(self, key: str, *topics: str) -> list[str]:
        return record_names(self._client, key, topics, batch=self._attempt.batch, window_ms=self._window_ms)


def of_topic(options: WriteOptions, topic: str) -> WriteOptions:
    """The same options for one topic."""
    return replace(options, address=replace(options.address, topic=topic))
