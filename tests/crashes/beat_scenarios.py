"""The scenarios of beat: claim, deliver, apply; and ways to do it that the explorer has to find wrong."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from conquiet.errors import QueueError
from conquiet.mq import Topics
from conquiet.tasks import MessageTarget, Schedule, TaskTarget
from conquiet.tasks.beat import Beat, BeatConfig
from conquiet.tasks.schedules.errors import UnknownScheduleError
from conquiet.tasks.schedules.store import Claim, StoredSchedule
from conquiet.tasks.schedules.timing import milliseconds_of
from tests.crashes.task_explorer import TaskScenario
from tests.crashes.task_site import TaskSite

#: Three occurrences of an hour, long ago.
START = datetime(2026, 1, 1, tzinfo=UTC)
_START_MS = milliseconds_of(START)
_HOURS: dict[str, Any] = {"every": timedelta(hours=1), "start": START, "end": START + timedelta(hours=2)}
#: For all of its time a schedule of that start is in time.
_LONG_S = 3e9
#: A leader that died is replaced at once.
_LEASE_S = 0.004


def schedules(*, ignore_result: bool = False) -> list[Schedule]:
    """One in each queue, each with three occurrences that nobody has claimed yet."""
    hours = _HOURS | {"catch_up": "all"}
    options = {"ignore_result": ignore_result}
    return [
        Schedule.of("a", TaskTarget("scheduled", options=options), **hours),
        Schedule.of("b", TaskTarget("scheduled", options={"queue": "other", **options}), **hours),
    ]


def effects_of(*names: str) -> Counter[str]:
    """Each occurrence once."""
    return Counter(f"{name}:{_START_MS + hour * 3_600_000}" for name in names for hour in range(3))


def put_due(site: TaskSite, schedule: Schedule) -> None:
    """Write a schedule whose first occurrence is due since long ago."""
    definition = site.app.schedules.encode(schedule)
    new = StoredSchedule(
        name=schedule.name, definition=definition, version=0, is_enabled=True, planned_ms=_START_MS
    )
    site.app.schedules.store.put(new, None)


def three_of_each(site: TaskSite) -> None:
    """Their tasks keep a result."""
    for schedule in schedules():
        put_due(site, schedule)


def three_of_each_without_result(site: TaskSite) -> None:
    """Their tasks have no record by which one that was enqueued could be known."""
    for schedule in schedules(ignore_result=True):
        put_due(site, schedule)


def three_messages(site: TaskSite) -> None:
    """To a stream."""
    target = MessageTarget(kind="stream", name=stream_of(site), payload={"a": 1})
    hours = _HOURS | {"catch_up": "all"}
    put_due(site, Schedule.of("m", target, **hours))


def stream_of(site: TaskSite) -> str:
    """A stream that the explorer deletes with all others."""
    return f"{site.app.namespace}:messages"


def beat(site: TaskSite, name: str = "beat", *, is_clustered: bool = False) -> None:
    """Tick until nothing is due, also after an error of Redis, as a beat does."""
    if is_clustered:
        # As on a cluster, where no script may touch two slots; the server itself would not mind.
        site.app.schedules.store._is_cluster = True  # type: ignore[attr-defined]
    ticking = Beat(
        site.app, BeatConfig(name=name, lease_ttl_s=_LEASE_S, poll_s=_LEASE_S / 2, retry_s=_LEASE_S)
    )
    is_done = False
    while not is_done:
        try:
            report = ticking.tick()
            is_done = report.is_leading and report.wait_ms > 0 and not report.errors
            if not report.is_leading:
                time.sleep(_LEASE_S)
        except QueueError:
            continue


def beat_clustered(site: TaskSite) -> None:
    """As on a cluster."""
    beat(site, is_clustered=True)


def beat_again(site: TaskSite) -> None:
    """Another one, after the first has died."""
    beat(site, "next")


def beat_again_clustered(site: TaskSite) -> None:
    """As on a cluster."""
    beat(site, "next", is_clustered=True)


def beat_again_and_count_messages(site: TaskSite) -> None:
    """Another one; then each message is there once."""
    beat_again(site)
    assert site.app.client.xlen(stream_of(site)) == 3
    assert site.app.schedules.stats().pending == 0


def apply_and_beat(site: TaskSite) -> None:
    """Schedules for once, applied by the code of every beat that starts; the second was changed."""
    site.app.schedule("a", "scheduled", at=START, misfire_grace_s=_LONG_S)
    site.app.schedule("b", "scheduled", {}, at=START, misfire_grace_s=_LONG_S, description="changed")
    for _ in range(2):
        try:
            Beat(site.app).apply_declared()
            break
        except QueueError:
            continue
    beat(site)


def apply_again_and_beat(site: TaskSite) -> None:
    """The next beat does the same."""
    site.app.schedules.declared.clear()
    apply_and_beat(site)


def three_messages_of_a_topic(site: TaskSite) -> None:
    """To a topic, whose producer knows by a dedupe id what it has sent."""
    Topics(site.app.client).create(topic_of(site), partitions=2)
    target = MessageTarget(kind="topic", name=topic_of(site), payload={"a": 1}, key="k")
    put_due(site, Schedule.of("m", target, **_HOURS, catch_up="all"))


def topic_of(site: TaskSite) -> str:
    """A topic that the explorer deletes with all others."""
    return f"{site.app.namespace}-topic"


def beat_again_and_count_messages_of_the_topic(site: TaskSite) -> None:
    """Another one; then each message is there once."""
    beat_again(site)
    topic = Topics(site.app.client).open(topic_of(site))
    assert sum(site.app.client.xlen(topic.keys.stream(partition)) for partition in range(2)) == 3
    assert site.app.schedules.stats().pending == 0
    Topics(site.app.client).delete(topic_of(site))


def late_ones_to_skip(site: TaskSite) -> None:
    """Of one the last occurrence is enqueued, of the other none: they are late."""
    put_due(site, Schedule.of("a", TaskTarget("scheduled"), **_HOURS, catch_up="last"))
    put_due(site, Schedule.of("b", TaskTarget("scheduled"), **_HOURS, catch_up="none"))


def beat_again_and_count_skipped(site: TaskSite) -> None:
    """Another one; then each occurrence was enqueued or counted as skipped."""
    beat_again(site)
    kept = {one.name: (one.runs, one.skipped) for one in site.app.schedules.stored()}
    assert kept == {"a": (1, 2), "b": (0, 3)}


def edit_and_beat(site: TaskSite) -> None:
    """Other times while three are due: those that are occurrences of both are carried over the edit."""
    hours = _HOURS | {"every": timedelta(minutes=30)}
    edited = Schedule.of("a", TaskTarget("scheduled"), **hours, catch_up="all")
    _again(lambda: site.app.schedules.apply(edited))
    beat(site)


def switch_and_beat(site: TaskSite) -> None:
    """One is disabled, and enabled once its time is over; the other one is deleted."""
    schedules = site.app.schedules
    _again(lambda: schedules.disable("a"))
    with suppress(UnknownScheduleError):
        _again(lambda: schedules.delete("b"))
    _again(lambda: schedules.enable("a"))
    beat(site)


def _again(step: Callable[[], object]) -> None:
    """As an operator who sees an error, and does it once more."""
    try:
        step()
    except QueueError:
        step()


def nothing(_site: TaskSite) -> None:
    """No schedule."""


def _without_occurrences(site: TaskSite, name: str) -> None:
    _, stored = site.app.schedules.store.read(name)
    assert stored is not None
    if stored.planned_ms is None:
        return
    epoch = site.app.schedules.store.tick("wrong", 0, lease_ms=1, most=1).epoch
    [is_claimed] = site.app.schedules.store.claim(
        [
            Claim(
                name=name,
                epoch=epoch,
                version=stored.version,
                planned_ms=stored.planned_ms,
                occurrences=(),
                skipped=0,
                next_planned_ms=None,
                next_due_ms=None,
            )
        ]
    )
    assert is_claimed


def claim_first(site: TaskSite) -> None:
    """A crash in between misses the occurrence."""
    _without_occurrences(site, "a")
    site.app.enqueue("effect", {"name": "a"})


def enqueue_first(site: TaskSite) -> None:
    """A crash in between enqueues it twice."""
    _, stored = site.app.schedules.store.read("a")
    if stored is not None and stored.planned_ms is not None:
        site.app.enqueue("effect", {"name": "a"})
        _without_occurrences(site, "a")


def one_due(site: TaskSite) -> None:
    """A schedule with one occurrence."""
    put_due(site, Schedule.of("a", TaskTarget("effect", {"name": "a"}), at=START))


BEAT_SCENARIOS: dict[str, TaskScenario] = {
    "beat_claim": TaskScenario(
        prepare=three_of_each,
        run=beat,
        recover=beat_again,
        effects=effects_of("a", "b"),
        states=Counter(succeeded=6),
        needs_process=True,
    ),
    "beat_claim_without_result": TaskScenario(
        prepare=three_of_each_without_result,
        run=beat,
        recover=beat_again,
        effects=effects_of("a", "b"),
        states=Counter(),
        needs_process=True,
    ),
    "beat_clustered": TaskScenario(
        prepare=three_of_each,
        run=beat_clustered,
        recover=beat_again_clustered,
        effects=effects_of("a", "b"),
        states=Counter(succeeded=6),
        needs_process=True,
    ),
    "beat_clustered_without_result": TaskScenario(
        prepare=three_of_each_without_result,
        run=beat_clustered,
        recover=beat_again_clustered,
        effects=effects_of("a", "b"),
        states=Counter(),
        needs_process=True,
    ),
    "beat_messages": TaskScenario(
        prepare=three_messages,
        run=beat,
        recover=beat_again_and_count_messages,
        effects=Counter(),
        states=Counter(),
        needs_process=True,
    ),
    "beat_topic": TaskScenario(
        prepare=three_messages_of_a_topic,
        run=beat,
        recover=beat_again_and_count_messages_of_the_topic,
        effects=Counter(),
        states=Counter(),
        needs_process=True,
    ),
    "beat_skips": TaskScenario(
        prepare=late_ones_to_skip,
        run=beat,
        recover=beat_again_and_count_skipped,
        effects=Counter((f"a:{_START_MS + 2 * 3_600_000}",)),
        states=Counter(succeeded=1),
        needs_process=True,
    ),
    "beat_edit": TaskScenario(
        prepare=three_of_each,
        run=edit_and_beat,
        recover=edit_and_beat,
        effects=effects_of("a", "b"),
        states=Counter(succeeded=6),
        needs_process=True,
    ),
    "beat_switch": TaskScenario(
        prepare=three_of_each,
        run=switch_and_beat,
        recover=switch_and_beat,
        effects=Counter(),
        states=Counter(),
        needs_process=True,
    ),
    "beat_apply": TaskScenario(
        prepare=nothing,
        run=apply_and_beat,
        recover=apply_again_and_beat,
        effects=Counter((f"a:{_START_MS}", f"b:{_START_MS}")),
        states=Counter(succeeded=2),
        needs_process=True,
    ),
}

BEAT_WRONG_LOOPS: dict[str, TaskScenario] = {
    "wrong_beat_claim_first": TaskScenario(
        prepare=one_due,
        run=claim_first,
        recover=beat_again,
        effects=Counter("a"),
        states=Counter(succeeded=1),
    ),
    "wrong_beat_enqueue_first": TaskScenario(
        prepare=one_due,
        run=enqueue_first,
        recover=beat_again,
        effects=Counter("a"),
        states=Counter(succeeded=1),
    ),
}
