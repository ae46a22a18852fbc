"""ScheduleStore: where schedules, their due times and what was claimed of them are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from conquiet.tasks.scripts.enqueue import NewTask


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSchedule:
    """A schedule as it is kept: its definition, which the store does not read, and its state."""

    name: str
    definition: bytes
    #: Counts the changes of its definition; occurrences do not change it.
    version: int
    is_enabled: bool
    #: The planned time of its next occurrence, ms; `None` if it is disabled or has ended.
    planned_ms: int | None = None
    #: When that is due: later by its jitter, or because it could not be claimed.
    due_ms: int | None = None
    #: When it was due before it was postponed; `None` of a store that does not keep it.
    planned_due_ms: int | None = None
    #: Planned times from before its last edit that are occurrences still, and when that edit was, ms.
    carried_ms: tuple[int, ...] = ()
    carried_until_ms: int | None = None
    runs: int = 0
    skipped: int = 0
    last_planned_ms: int | None = None
    last_at_ms: int | None = None
    last_id: str | None = None
    #: How much later than due the last occurrence was claimed.
    last_drift_ms: int | None = None
    #: Why it cannot be claimed now.
    error: str | None = None
    error_at_ms: int | None = None
    created_at_ms: int | None = None
    updated_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TaskDelivery:
    """The task of an occurrence."""

    queue: str
    task: NewTask


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDelivery:
    """The message of an occurrence."""

    #: "stream" or "topic".
    kind: str
    name: str
    #: A JSON object: `payload`, `key` and `headers`.
    data: bytes


@dataclass(frozen=True, slots=True)
class UnreadableDelivery:
    """What was kept for an occurrence, and cannot be read."""

    reason: str


Delivery = TaskDelivery | MessageDelivery


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """One occurrence to claim."""

    planned_ms: int
    due_ms: int
    id: str
    delivery: Delivery


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Occurrences of one schedule that are claimed together, or not at all."""

    name: str
    #: Of the beat that leads.
    epoch: int
    #: Both as the caller has read them: if they are others now, nothing is claimed.
    version: int
    planned_ms: int
    #: As the caller has read it: one that was deleted and created again may have the same version.
    created_at_ms: int | None = None
    occurrences: Sequence[Occurrence]
    skipped: int
    #: `None`: there is no next one.
    next_planned_ms: int | None
    next_due_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingOccurrence:
    """One occurrence that was claimed, and whose delivery is not confirmed yet."""

    #: By which it is confirmed.
    item_id: str
    #: Rises with every item of the store.
    sequence: int
    schedule: str
    planned_ms: int
    id: str
    delivery: Delivery | UnreadableDelivery
    #: When its schedule was created: one of the same name may have been deleted before.
    created_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """What the store returns to a beat that asks."""

    now_ms: int
    #: 0: another beat leads.
    epoch: int
    leader: str
    #: Names of schedules that are due, the longest first; only for the leader, as `pending`.
    due: tuple[str, ...] = ()
    #: When the next schedule is due; `None` if there is none.
    next_due_ms: int | None = None
    #: The oldest first.
    pending: tuple[PendingOccurrence, ...] = ()
    #: Another one than before says that the store has lost what it had, as a server without its data.
    since_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PastOccurrence:
    """One line of the history of a schedule."""

    planned_ms: int
    at_ms: int
    drift_ms: int
    id: str
    #: Not if its task, or a unique one like it, was there before.
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatStats:
    """All schedules together, at one moment."""

    now_ms: int
    schedules: int
    #: Enabled, and not ended.
    waiting: int
    due: int
    #: Due for longer than a minute.
    overdue: int
    oldest_overdue_ms: int
    #: Claimed, and not delivered yet.
    pending: int
    leader: str | None
    epoch: int


class ScheduleStore(Protocol):
    """Keeps schedules; each method is one step that happens or does not.

    What it promises: an occurrence is claimed once, by the beat whose epoch is the last one, and in the step
    that moves its schedule to the next planned time. After that step its delivery is done, or pending until
    it is confirmed.
    `conquiet.testing.ScheduleStoreContract` tests it.

    Raises:
        QueueError: of every method, if the store cannot be reached.

    Examples:
        >>> store = app.schedules.store  # in Redis
        >>> store.delete("no-such-schedule", None)
        False
    """

    def put(self, changed: StoredSchedule, seen: StoredSchedule | None) -> int:
        """Write definition, `is_enabled`, planned and carried times, and return the version; the rest stays.

        Raises:
            ScheduleChangedError: version, planned time or creation are not those of `seen`; or it is there,
                and was not seen.
        """

    def read(self, name: str) -> tuple[int, StoredSchedule | None]:
        """The time of the store, ms, and the schedule."""

    def read_many(self, names: Sequence[str]) -> list[StoredSchedule]:
        """Those of the names that are there, in one round trip.

        One that cannot be read has version 0, no definition, and an error.
        """

    def names(self) -> Iterator[str]:
        """The names of all schedules, in order."""

    def delete(self, name: str, version: int | None) -> bool:
        """Delete a schedule; `False` if there is none.

        Raises:
            ScheduleChangedError: it is at another version than the given.
        """

    def tick(self, beat: str, epoch: int, *, lease_ms: int, most: int, after: str = "") -> Tick:
        """Renew the lease of a beat, or take it if it is free, and say what is due.

        Args:
            epoch: the last one that was returned to it; 0 for none.
            lease_ms: after so long without a call another beat may lead.
            after: the item behind which `pending` begins, if those before it cannot be delivered.
        """

    def release(self, epoch: int) -> None:
        """End the lease of a beat that stops."""

    def claim(self, claims: Sequence[Claim]) -> list[bool | Exception]:
        """Claim for several schedules; of each whether it was, or the error of one that was refused."""

    def postpone(self, seen: StoredSchedule, epoch: int, delay_ms: int | None, error: str) -> bool:
        """Note an error, and with a delay have the schedule due again later; its planned time stays.

        Args:
            error: empty if there is none any more.
        """

    def deliver_task(self, occurrence: PendingOccurrence) -> bool:
        """Enqueue the task of a pending occurrence, once however often it is called; whether it was new."""

    def pending(self) -> Iterator[PendingOccurrence]:
        """All whose delivery is not confirmed, the oldest first; also to a caller that does not lead."""

    def confirm(self, item_ids: Sequence[str]) -> None:
        """These deliveries were made."""

    def history(self, name: str, limit: int = 100) -> list[PastOccurrence]:
        """The last occurrences of a schedule that were claimed, the newest first."""

    def stats(self) -> BeatStats:
        """How many there are, and what is overdue."""
