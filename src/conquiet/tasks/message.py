"""TaskMessage: one delivery of one task, as the engine sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from conquiet.errors import MalformedEntry
from conquiet.tasks import clock
from conquiet.tasks.envelope import TaskEnvelope
from conquiet.tasks.keys import GROUP, QueueKeys
from conquiet.tasks.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an entry is."""

    keys: QueueKeys
    priority: int
    entry_id: str


@dataclass(frozen=True, slots=True)
class MalformedTask(MalformedEntry):
    """An entry that is no task, and where it is."""

    place: Place | None = None


# Not frozen, as one is made for every task: that would triple what it costs.
@dataclass(slots=True, kw_only=True)
class TaskMessage:
    """One task that was read; it stays pending until it is settled."""

    place: Place
    envelope: TaskEnvelope
    data: bytes = field(repr=False)
    #: As it will be when the task has begun.
    delivery_count: int
    #: Whether Redis has counted this delivery; what waited is counted when it begins.
    is_counted: bool
    #: `None` if this worker does not know a task of this name.
    task: Task[..., Any] | None = field(repr=False)
    #: What the function returned, as JSON or as the reference to what is stored; set before the commit.
    result: bytes | None = None
    #: The key of its arguments in the payload store, or empty.
    stored_key: str = ""
    #: When the attempt began, ms; 0 if it did not.
    started_ms: int = 0

    @property
    def id(self) -> str:
        """The task's id: entries of two priorities may have the same."""
        return self.envelope.id

    @property
    def stream(self) -> str:
        """The key of the stream."""
        return self.place.keys.streams[self.place.priority]

    @property
    def group(self) -> str:
        """The consumer group."""
        return GROUP

    @property
    def payload(self) -> Mapping[str, Any]:
        """The arguments."""
        return self.envelope.args

    @property
    def headers(self) -> Mapping[str, str]:
        """Those of the envelope; they carry the trace."""
        return self.envelope.headers

    @property
    def attempt(self) -> int:
        """Deliveries so far, this one included: one more than the task's own `attempt`."""
        return self.delivery_count

    @property
    def log_fields(self) -> dict[str, Any]:
        """What log lines of it have; the attempt as its function knows it, from 0."""
        facts = {"task": self.envelope.name, "queue": self.place.keys.queue}
        return facts | {"attempt": self.delivery_count - 1, "stream": self.stream}

    @property
    def identity(self) -> tuple[str, str]:
        """By which the inbox knows it."""
        return self.place.keys.prefix, self.envelope.id

    @property
    def has_record(self) -> bool:
        """Whether its state is kept."""
        return self.envelope.meta.get("ignoreResult") is not True

    @property
    def canvas(self) -> str | None:
        """The id of the canvas that it belongs to."""
        carried = self.envelope.meta.get("canvas")
        found = carried.get("id") if isinstance(carried, dict) else None
        return found if isinstance(found, str) else None

    def has_expired(self) -> bool:
        """Whether it may not begin any more."""
        left_ms = self.left_ms()
        return left_ms is not None and left_ms <= 0

    def left_ms(self) -> int | None:
        """How long it may still begin; `None`: for ever."""
        expires_at = self.envelope.meta.get("expiresAt")
        if not isinstance(expires_at, str):
            return None
        return int((datetime.fromisoformat(expires_at) - clock.now()).total_seconds() * 1000)

    def age_s(self) -> float:
        """Since it was enqueued."""
        return max(0.0, clock.now_ms() / 1000 - self.envelope.enqueued_at.timestamp())

    def waited_s(self) -> float:
        """From when it could run to its begin."""
        could_run = self.envelope.not_before or self.envelope.enqueued_at
        return max(0.0, self.started_ms / 1000 - could_run.timestamp())

    def begins(self) -> None:
        """The attempt begins now, if it has not."""
        self.started_ms = self.started_ms or clock.now_ms()
