"""The names of every key of the task layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

#: The one consumer group of every stream of a queue.
GROUP = "workers"
#: The consumer of tasks that wait for their time: retried, handed back or left by a dead worker.
WAITING = "@waiting"

#: A feed is trimmed to about so many events.
FEED_LENGTH = 20_000

#: Results of so many members of a group are in one key.
GROUP_SHARD = 1_000

PRIORITIES = range(10)
DEFAULT_PRIORITY = 5
#: Of a task, and of an envelope, that says nothing else.
DEFAULT_MAX_RETRIES = 3


@dataclass(frozen=True)
class QueueKeys:
    """The keys of one queue; the tag in them puts all of them into one slot of a cluster."""

    namespace: str
    queue: str

    @cached_property
    def prefix(self) -> str:
        """What all of them begin with."""
        return f"{self.namespace}:{{{self.queue}}}"

    @cached_property
    def meta(self) -> str:
        """A hash: which priorities are in use, whether the queue is paused or listened to, changed rates."""
        return f"{self.prefix}:meta"

    @cached_property
    def streams(self) -> tuple[str, ...]:
        """The stream of each priority, from 0 to 9."""
        return tuple(f"{self.prefix}:{priority}" for priority in PRIORITIES)

    @cached_property
    def ends(self) -> tuple[str, ...]:
        """Of each stream a hash: where it ended when it was last checked, and what was lost of it."""
        return tuple(f"{stream}:end" for stream in self.streams)

    @cached_property
    def waiting(self) -> tuple[str, ...]:
        """Of each priority a sorted set: pending entries that wait, by the time at which they are due."""
        return tuple(f"{self.prefix}:{priority}:waiting" for priority in PRIORITIES)

    @cached_property
    def delayed(self) -> str:
        """A sorted set: the ids of tasks that are not in a stream yet, by the time at which they are due."""
        return f"{self.prefix}:delayed"

    @cached_property
    def delayed_items(self) -> str:
        """A hash: what is added for each of them."""
        return f"{self.prefix}:delayed:items"

    @cached_property
    def heartbeats(self) -> str:
        """A sorted set: consumers, by the time until which they count as alive."""
        return f"{self.prefix}:heartbeats"

    @cached_property
    def events(self) -> str:
        """A stream, trimmed to about its last 10,000 entries: what became of tasks."""
        return f"{self.prefix}:events"

    @cached_property
    def feed(self) -> str:
        """A stream for listeners: every change of a task; written only while there are any, and expires."""
        return f"{self.prefix}:feed"

    @cached_property
    def dead_letters(self) -> str:
        """A stream: tasks that will not be tried again."""
        return f"{self.prefix}:dlq"

    @cached_property
    def revoked(self) -> str:
        """A sorted set: ids of revoked tasks, by the time until which that is remembered."""
        return f"{self.prefix}:revoked"

    @cached_property
    def follow_ups(self) -> str:
        """A hash: what is to follow on tasks of a canvas that have ended, by their ids."""
        return f"{self.prefix}:follow_ups"

    @cached_property
    def payloads(self) -> str:
        """A hash: the index of what is in the payload store, by its keys; for whom it is kept, as JSON."""
        return f"{self.prefix}:payloads"

    def group(self, group_id: str) -> str:
        """A hash: how many members of a group have not ended, and the task that follows."""
        return f"{self.prefix}:group:{group_id}"

    def group_results(self, group_id: str, shard: int) -> str:
        """A hash: results of members, `GROUP_SHARD` of them, each behind a 1, or errors, behind a 0."""
        return f"{self.prefix}:group:{group_id}:{shard}"

    def record(self, task_id: str) -> str:
        """A hash: state, result and history of one task."""
        return f"{self.prefix}:task:{task_id}"

    def unique(self, digest: str) -> str:
        """A string: the id of the first task with this name and these arguments."""
        return f"{self.prefix}:unique:{digest}"

    def rate(self, bucket: str) -> str:
        """A hash: the token bucket of a task, or of one of its keys."""
        return f"{self.prefix}:rate:{bucket}"

    def scheduled(self, schedule: str) -> str:
        """A string: by what the last enqueued occurrence of a schedule is known; on a cluster only."""
        return f"{self.prefix}:scheduled:{schedule}"

    def reserved(self, bucket: str) -> str:
        """A sorted set: tasks that wait for a token of the bucket, by the time at which theirs is there."""
        return f"{self.prefix}:reserved:{bucket}"


@dataclass(frozen=True)
class BeatKeys:
    """The keys of the schedules of an app; the tag puts all of them into one slot of a cluster."""

    namespace: str

    @cached_property
    def prefix(self) -> str:
        """What all of them begin with; no queue has the same, since its tag stands behind the namespace."""
        return f"{self.namespace}:beat:{{schedules}}"

    @cached_property
    def meta(self) -> str:
        """A hash: the lease of the beat that leads, and the number of the last item of the outbox."""
        return f"{self.prefix}:meta"

    @cached_property
    def names(self) -> str:
        """A sorted set: the names of all schedules, each with the score 0."""
        return f"{self.prefix}:names"

    @cached_property
    def due(self) -> str:
        """A sorted set: the names of schedules that wait for their time, by that time, ms."""
        return f"{self.prefix}:due"

    @cached_property
    def outbox(self) -> str:
        """A stream: what was claimed and is not delivered yet."""
        return f"{self.prefix}:outbox"

    def schedule(self, name: str) -> str:
        """A hash: the definition of a schedule, its version and its state."""
        return f"{self.prefix}:schedule:{name}"

    def history(self, name: str) -> str:
        """A list: the last 100 occurrences that were claimed, the newest first."""
        return f"{self.prefix}:history:{name}"


def registry_key(namespace: str) -> str:
    """A set: the names of all queues."""
    return f"{namespace}:queues"


def control_key(namespace: str) -> str:
    """A stream: what control asks of all workers; each one reads it from its own position."""
    return f"{namespace}:control"


def answers_key(namespace: str, request_id: str) -> str:
    """A stream: what workers answer to one request; expires."""
    return f"{namespace}:answers:{request_id}"


def workers_key(namespace: str) -> str:
    """A sorted set: the descriptions of workers, by the time until which they count as alive."""
    return f"{namespace}:workers"
