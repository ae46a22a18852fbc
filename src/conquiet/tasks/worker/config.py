"""WorkerConfig: what a worker reads, and how many tasks it runs at once."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from typing import Literal
from uuid import uuid4

from conquiet.arguments import check_name, check_positive_int, check_positive_seconds

Pool = Literal["process", "thread", "async"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """One worker.

    Examples:
        >>> config = WorkerConfig(queues=("mails", "default"), pool="process", max_tasks_per_child=1_000)
    """

    #: The queues that it reads, in turn.
    queues: tuple[str, ...] = ("default",)
    #: How many tasks run at once.
    concurrency: int = field(default_factory=lambda: os.cpu_count() or 1)
    #: Where tasks run: "process", in children that a hard time limit can kill; "thread"; or "async", in
    #: threads, and `async def` on one event loop.
    pool: Pool = "process"
    #: Tasks that a worker reserves for each one that it runs. Quick ones are read in larger batches; while
    #: one runs for longer than 0.1 s, what is reserved behind it is free for other workers.
    prefetch_multiplier: int = 2
    #: A worker that has not renewed its heartbeat for so long has lost its tasks to others.
    heartbeat_ttl_s: float = 15.0
    #: A child process is replaced after so many tasks, or when it has so much memory.
    max_tasks_per_child: int | None = None
    #: A child process is replaced when it has so much memory.
    max_memory_mb: int | None = None
    #: How long the database may be unavailable before the worker ends.
    max_outage_s: float = 300.0
    #: Unique among live workers; host, pid and a few random digits unless given.
    name: str = field(default_factory=lambda: f"{socket.gethostname()}.{os.getpid()}.{uuid4().hex[:8]}")

    def __post_init__(self) -> None:
        if not self.queues or isinstance(self.queues, str):
            raise ValueError(f"queues must be names of queues, got {self.queues!r}")
        for queue in self.queues:
            check_name("queue", queue)
        check_positive_int("concurrency", self.concurrency)
        check_positive_int("prefetch_multiplier", self.prefetch_multiplier)
        check_positive_seconds("heartbeat_ttl_s", self.heartbeat_ttl_s)
        for name in ("max_tasks_per_child", "max_memory_mb"):
            if getattr(self, name) is not None:
                check_positive_int(name, getattr(self, name))
        if self.pool not in ("process", "thread", "async"):
            raise ValueError(f"pool must be 'process', 'thread' or 'async', got {self.pool!r}")
        check_name("name", self.name)

    @property
    def lease_ms(self) -> int:
        """For how long one heartbeat counts; with the time to the next look it stays below the TTL."""
        return max(2, round(self.heartbeat_ttl_s * 500))
