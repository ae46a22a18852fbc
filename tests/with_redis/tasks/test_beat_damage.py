"""Keys that others have written, or that a beat may not write: nothing is doubled or held up."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

from conquiet import QueueError
from conquiet.tasks import TaskApp, clock
from conquiet.tasks.beat import Beat, BeatConfig
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

pytestmark = pytest.mark.usefixtures("at_noon")


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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("planned", "abc"), ("planned", "12.5"), ("planned", "9" * 400), ("plannedDue", "x")),
        *(("runs", "x"), ("skipped", ""), ("lastPlanned", ""), ("version", "x"), ("createdAtMs", "x")),
        *(("carried", "x 1"), ("carriedUntil", "x")),
    ],
)
def test_a_field_that_somebody_has_written_holds_up_nobody_and_is_repaired_by_an_edit(
    app: TaskApp, field: str, value: str
) -> None:
    for name in ("good", "bad"):
        app.schedule(name, app.task(name=name, queue=name)(nothing), every=HOUR)
    beat = beat_of(app)
    client: Any = app.client
    client.hset(BeatKeys(app.namespace).schedule("bad"), field, value)
    set_clock(NOON + HOUR)
    tick_all(beat)
    assert queued(app, "good") == [planned(NOON + HOUR, "good")]

    app.schedules.apply(app.new_schedule("bad", app.tasks["bad"], every=HOUR / 2))
    set_clock(NOON + 2 * HOUR)
    tick_all(beat)
    assert planned(NOON + 2 * HOUR, "bad") in queued(app, "bad")
    assert len(queued(app, "good")) == 2


@pytest.mark.parametrize("score", ["-inf", "1"])
def test_names_without_a_planned_time_do_not_fill_the_page_of_what_is_due(app: TaskApp, score: str) -> None:
    client: Any = app.client
    keys = BeatKeys(app.namespace)
    app.schedule("s", "any", every=HOUR)
    names = [f"z{number}" for number in range(100)]
    for name in names:
        app.schedule(name, "any", every=HOUR)
    beat = beat_of(app)
    for name in names:
        client.hdel(keys.schedule(name), "planned")
    client.zadd(keys.due, dict.fromkeys(names, score))
    set_clock(NOON + HOUR)
    tick_all(beat)

    assert queued(app) == [planned(NOON + HOUR)]
    assert "disable and enable it" in str(app.schedules.get("z1").stored.error)


@pytest.mark.parametrize(("score", "meta"), [("inf", {}), ("1", {"sinceMs": "x"})])
def test_times_that_are_no_numbers_stop_no_beat(app: TaskApp, score: str, meta: dict[str, str]) -> None:
    client: Any = app.client
    keys = BeatKeys(app.namespace)
    app.schedule("s", "any", every=HOUR)
    app.schedule("other", "any", every=HOUR)
    beat = beat_of(app)
    client.zadd(keys.due, {"other": score})
    for field, value in meta.items():
        client.hset(keys.meta, field, value)
    set_clock(NOON + HOUR)
    tick_all(beat)

    assert planned(NOON + HOUR) in queued(app)


@contextmanager
def without_right(app: TaskApp, server_url: str, command: str) -> Iterator[TaskApp]:
    """The app of a user who may do all but one command."""
    client: Any = app.client
    name, parts = f"user-{uuid.uuid4().hex[:10]}", urlsplit(server_url)
    client.acl_setuser(
        name, enabled=True, passwords=["+secret"], keys=["*"], commands=["+@all", f"-{command}"]
    )
    try:
        address = parts.netloc.rpartition("@")[2]
        with TaskApp(
            parts._replace(netloc=f"{name}:secret@{address}").geturl(), namespace=app.namespace
        ) as restricted:
            yield restricted
    finally:
        client.acl_deluser(name)


@pytest.mark.parametrize("command", ["hset", "set", "xadd"])
def test_a_task_whose_record_may_not_be_written_is_not_enqueued(
    app: TaskApp, server_url: str, command: str
) -> None:
    keys = app.keys("default")
    with without_right(app, server_url, command) as restricted:
        for _ in range(3):
            with pytest.raises(QueueError):
                restricted.enqueue("t", {}, unique_for_s=60)

    assert queued(app) == []
    assert not [*app.client.scan_iter(keys.record("*")), *app.client.scan_iter(keys.unique("*"))]
    # And nothing of it stands in the way of those that may.
    assert app.enqueue("t", {}, unique_for_s=60).is_new


@pytest.mark.parametrize("command", ["hset", "pexpire", "xadd"])
@pytest.mark.parametrize("way", ["plain", "many", "unique"])
def test_a_call_that_may_not_be_recorded_is_not_enqueued(
    app: TaskApp, server_url: str, command: str, way: str
) -> None:
    # The queue is in use, and its server knows the scripts.
    begun = app.task(name="t")(nothing)
    for _ in range(2):
        begun.enqueue()
    waiting = queued(app)
    with without_right(app, server_url, command) as restricted:
        task = restricted.task(name="t")(nothing)
        ways: dict[str, Callable[[], object]] = {
            "plain": task.enqueue,
            "many": lambda: task.enqueue_many([{}, {}]),
            "unique": task.with_options(unique_for_s=60).enqueue,
        }
        for _ in range(3):
            with pytest.raises(QueueError):
                ways[way]()

    assert queued(app) == waiting


def test_a_beat_that_may_not_write_records_enqueues_no_occurrence_again_and_again(
    app: TaskApp, server_url: str
) -> None:
    app.schedule("s", app.task(name="t")(nothing), every=HOUR)
    tick_all(beat_of(app))
    with without_right(app, server_url, "hset") as restricted:
        restricted.task(name="t")(nothing)
        beat = Beat(restricted, BeatConfig(name="b"))
        for number in range(3):
            set_clock(NOON + HOUR + number * 2 * RETRY)
            with suppress(QueueError):
                beat.tick()

    assert queued(app) == []
