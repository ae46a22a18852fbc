"""TaskBatch: entries that were read, as tasks and as what is malformed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from conquiet.errors import MalformedEntry
from conquiet.queue.message import data_of, pairs_of
from conquiet.tasks.codec import EnvelopeCodec, stored_args
from conquiet.tasks.envelope import LaterVersionError
from conquiet.tasks.keys import QueueKeys
from conquiet.tasks.message import MalformedTask, Place, TaskMessage
from conquiet.tasks.metrics import METRICS
from conquiet.tasks.options import TaskOptions, check_meta
from conquiet.tasks.rates import RateLimiter
from conquiet.tasks.scripts import Taken
from conquiet.tasks.task import Task


class ChannelApp(Protocol):
    """What a channel needs of its app."""

    tasks: dict[str, Task[..., Any]]
    defaults: TaskOptions
    codec: EnvelopeCodec

    @property
    def rate_limiter(self) -> RateLimiter:
        """What keeps the rates of tasks."""


@dataclass(slots=True)
class TaskBatch:
    """What one read delivered."""

    messages: list[TaskMessage] = field(default_factory=list)
    malformed: list[MalformedEntry] = field(default_factory=list)

    def add(self, app: ChannelApp, keys: QueueKeys, entries: Sequence[Taken]) -> None:
        """Add entries of one queue."""
        for taken in entries:
            place = Place(keys=keys, priority=taken.priority, entry_id=taken.entry_id)
            try:
                data = data_of(taken.fields)
                envelope = app.codec.decode(data)
                stored = stored_args(envelope)
                task = app.tasks.get(envelope.name)
                check_meta(envelope.meta, app.defaults if task is None else task.options)
            except (ValueError, RecursionError) as error:
                self.malformed.append(_malformed(taken, place, error))
                continue
            msg = TaskMessage(
                place=place,
                envelope=envelope,
                data=data,
                delivery_count=taken.delivery_count + taken.has_waited,
                is_counted=not taken.has_waited,
                task=task,
                stored_key="" if stored is None else stored.key,
            )
            self.messages.append(msg)


def _malformed(taken: Taken, place: Place, error: ValueError | RecursionError) -> MalformedTask:
    queue = place.keys.queue
    METRICS.emit("conquiet_tasks_malformed_total", 1, queue)
    # By its name: the module of signatures needs a package that not every worker has.
    if type(error).__name__ == "BadSignatureError":
        METRICS.emit("conquiet_tasks_signature_invalid_total", 1, queue)
    # What is new was counted as it was read; what only a later version can read has had no attempt.
    count = taken.delivery_count - (not taken.has_waited) if isinstance(error, LaterVersionError) else None
    return MalformedTask(
        taken.entry_id,
        pairs_of(taken.fields),
        taken.delivery_count,
        str(error),
        hand_back_count=count,
        place=place,
    )
