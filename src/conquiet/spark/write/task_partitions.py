"""What all attempts of one task agree on: which partitions of a topic they add to, out of how many."""

from __future__ import annotations

from collections.abc import Sequence

from conquiet.queue.connection import Client, key_beside
from conquiet.spark.scripts import note_partitions
from conquiet.spark.task_context import Attempt


class TaskRecord:
    """Kept by the server beside the first partition, as long as the notes about the task's rows."""

    def __init__(self, client: Client, streams: Sequence[str], attempt: Attempt, window_ms: int) -> None:
        self._client = client
        self._streams = streams
        self._attempt = attempt
        self._window_ms = window_ms
        self.key = key_beside(streams[0], f"spark:{attempt.write_id}:{attempt.task}:partitions")

    def count(self) -> int:
        """How many partitions the topic had for the first attempt that added something; now, if none has."""
        return self._note()[0]

    def noted(self) -> list[str]:
        """The streams that attempts have added to, or were about to."""
        return [self._streams[partition] for partition in self._note()[1]]

    def note(self, stream: str) -> int:
        """Say that this attempt is about to add to a stream; returns the count that was agreed on."""
        return self._note(self._streams.index(stream))[0]

    def _note(self, *partitions: int) -> tuple[int, list[int]]:
        return note_partitions(
            self._client,
            self.key,
            partitions,
            count=len(self._streams),
            batch=self._attempt.batch,
            window_ms=self._window_ms,
        )
