"""What tests of beats share: a clock that is set, and what was enqueued."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from conquiet.tasks import TaskApp, clock
from conquiet.tasks.beat import Beat, BeatConfig

NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
#: After so long a beat tries again.
RETRY = timedelta(seconds=BeatConfig().retry_s)


def set_clock(moment: datetime) -> None:
    clock.set_clock(round(moment.timestamp() * 1000))


def planned(moment: datetime, name: str = "s") -> str:
    return f"beat:{name}:{round(moment.timestamp() * 1000)}"


def entries(app: TaskApp, stream: str) -> list[dict[str, Any]]:
    client: Any = app.client
    return [json.loads(fields[b"data"]) for _, fields in client.xrange(stream)]


def queued(app: TaskApp, queue: str = "default") -> list[str]:
    return [entry["id"] for entry in entries(app, app.keys(queue).streams[5])]


def nothing() -> None:
    """The function of tasks that no worker runs."""


def tick_all(beat: Beat) -> int:
    claimed = 0
    while (report := beat.tick()).wait_ms == 0:
        claimed += report.claimed
    return claimed


def beat_of(app: TaskApp, name: str = "b") -> Beat:
    beat = Beat(app, BeatConfig(name=name))
    beat.apply_declared()
    return beat
