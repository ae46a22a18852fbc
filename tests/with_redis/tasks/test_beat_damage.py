"""Keys that others have written, or that a beat may not write: nothing is doubled, and nobody else is held up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from conquiet.tasks import TaskApp, clock
from conquiet.tasks.keys import BeatKeys
from tests.with_redis.tasks.beats import (
    HOUR,
    NOON,
    RETRY,
    beat_of,
    nothing,
    planned,
    queued,
    set_clock,
    tick_all,
)


@pytest.fixture(autouse=True)
def at_noon() -> Iterator[None]:
    set_clock(NOON)
    yield
    clock.set_clock(None)


def listen_to_a_broken_feed(app: TaskApp) -> None:
    """Somebody listens, and the feed is no stream."""
    client: Any = app.client
    keys = app.keys("default")
    client.hset(keys.meta, "listened", clock.now_ms() + 10**9)
    client.set(keys.feed, "no stream")


@pytest.mark.parametrize("is_clustered", [False, True])
def test_an_occurrence_whose_event_cannot_be_written_is_enqueued_once(
    app: TaskApp, is_clustered: bool
) -> None:
    app.schedule("s", app.task(name="t", ignore_result=True)(nothing), every=HOUR)
    store: Any = app.schedules.store
    store._is_cluster = is_clustered or store._is_cluster
    beat = beat_of(app)
    listen_to_a_broken_feed(app)
    for number in range(4):
        set_clock(NOON + HOUR + number * 2 * RETRY)
        tick_all(beat)

    assert queued(app) == [planned(NOON + HOUR)]
    assert app.schedules.get("s").stored.error is None


@pytest.mark.parametrize("options", [{}, {"unique_for_s": 60}, {"ignore_result": True}])
def test_a_task_whose_event_cannot_be_written_is_enqueued_without_an_error(
    app: TaskApp, options: dict[str, Any]
) -> None:
    listen_to_a_broken_feed(app)

    handle = app.enqueue("any", **options)

    assert queued(app) == [handle.id]
