"""QueueStats: how many tasks of a queue are where."""

from __future__ import annotations

from dataclasses import dataclass

from conquiet.queue.connection import Client, as_text
from conquiet.tasks.keys import QueueKeys
from conquiet.tasks.scripts import control as scripts


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityStats:
    """One priority of a queue."""

    priority: int
    #: Not read by a worker yet.
    queued: int
    #: Running, or reserved by a worker.
    in_flight: int
    #: For their retry, their rate, or another worker.
    waiting: int
    #: Of the oldest task that has not ended, ms; `None` if there is none.
    oldest_age_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """One queue, at one moment.

    Examples:
        >>> app.control.queue("mails").queue
        'mails'
    """

    queue: str
    is_paused: bool
    #: Not due yet.
    delayed: int
    dead_letters: int
    #: Consumers of workers, by their heartbeats.
    consumers: int
    #: Those in use, the highest first.
    priorities: tuple[PriorityStats, ...]

    @property
    def queued(self) -> int:
        """Of all priorities."""
        return sum(one.queued for one in self.priorities)

    @property
    def in_flight(self) -> int:
        """Of all priorities."""
        return sum(one.in_flight for one in self.priorities)

    @property
    def waiting(self) -> int:
        """Of all priorities."""
        return sum(one.waiting for one in self.priorities)

    @property
    def oldest_age_ms(self) -> int | None:
        """Of all priorities."""
        return max(
            (one.oldest_age_ms for one in self.priorities if one.oldest_age_ms is not None), default=None
        )


def read_stats(client: Client, keys: QueueKeys) -> QueueStats:
    """Count, in one call."""
    now_ms, is_paused, delayed, dead_letters, consumers, *rows = scripts.queue_stats(client, keys)
    priorities = []
    for priority, length, pending, waiting, oldest in rows:
        since = as_text(oldest).partition("-")[0]
        priorities.append(
            PriorityStats(
                priority=priority,
                queued=length - pending,
                in_flight=pending - waiting,
                waiting=waiting,
                oldest_age_ms=max(0, now_ms - int(since)) if since else None,
            )
        )
    return QueueStats(
        queue=keys.queue,
        is_paused=bool(is_paused),
        delayed=delayed,
        dead_letters=dead_letters,
        consumers=consumers,
        priorities=tuple(priorities),
    )
