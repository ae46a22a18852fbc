"""WorkerDescription: what a worker says about itself, kept while it is alive."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from conquiet.queue.connection import Client
from conquiet.tasks.keys import workers_key
from conquiet.tasks.scripts import control as scripts


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDescription:
    """One process that runs tasks; the same as long as it lives.

    Examples:
        >>> [description.pool for description in app.control.workers()]
        ['thread']
    """

    name: str
    queues: tuple[str, ...]
    pool: str
    concurrency: int
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    started_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    #: The name of the worker whose child process it is; `None` for one of its own.
    parent: str | None = None

    def encode(self) -> str:
        """As it is kept."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Self | None:
        """As it was kept; `None` for what this version cannot read. Unknown fields are left out."""
        try:
            found: dict[str, Any] = json.loads(text)
            return cls(
                name=str(found["name"]),
                queues=tuple(map(str, found["queues"])),
                pool=str(found["pool"]),
                concurrency=int(found["concurrency"]),
                host=str(found["host"]),
                pid=int(found["pid"]),
                started_at=str(found["started_at"]),
                parent=None if found.get("parent") is None else str(found["parent"]),
            )
        except (ValueError, KeyError, TypeError):
            return None


def live_workers(client: Client, namespace: str, *, forgets_ended: bool = True) -> list[WorkerDescription]:
    """All that are alive, in the order of their names; who may only read forgets none that has ended."""
    texts = scripts.live_workers(client, workers_key(namespace), forgets_ended=forgets_ended)
    found = [description for text, _ in texts if (description := WorkerDescription.decode(text)) is not None]
    return sorted(found, key=lambda one: one.name)
