"""Ways of running tasks with a hole, each of which the explorer has to find."""

from __future__ import annotations

from collections import Counter
from unittest.mock import patch

from conquiet.tasks import chord, scripts
from conquiet.tasks.handling import TaskHandling
from conquiet.tasks.keys import GROUP
from conquiet.tasks.worker.slot import RunningTask
from tests.crashes.task_explorer import TaskScenario
from tests.crashes.task_scenarios import enqueue_large, nothing, one_that_may_be_tried_once, work_as_child
from tests.crashes.task_site import TaskSite


def one(site: TaskSite) -> None:
    """One task that nobody has read."""
    site.effect.enqueue(name="a")


def ack_before_the_result(site: TaskSite) -> None:
    """A crash after the ack leaves a task that never ends."""
    keys = site.app.keys("default")
    [entry] = scripts.settle_and_read(site.app.client, keys, "worker", (), count=1, max_bytes=1 << 20).entries
    site.app.client.xack(keys.streams[5], GROUP, entry.entry_id)
    site.app.client.xdel(keys.streams[5], entry.entry_id)
    envelope = site.app.codec.decode(entry.fields[1])
    site.app.client.hset(keys.record(envelope.id), "state", "succeeded")


def enqueue_without_an_id(site: TaskSite) -> None:
    """Enqueued again, all members run again."""
    chord([site.effect.call(name=name) for name in "ab"], site.join.partial()).enqueue()


def settle_without_asking(site: TaskSite, running: RunningTask | None) -> None:
    """The parent of a dead child takes its task for failed, although it was committed."""
    with patch.object(TaskHandling, "has_handled", lambda *_: False):
        site.settle_as_parent(running)


def enqueue_before_the_content(site: TaskSite) -> None:
    """A crash in between leaves a task without its arguments."""
    store = site.app.payload_store
    assert store is not None
    stored: list[tuple[str, bytes]] = []
    with patch.object(store, "put", lambda *content: stored.append(content)):
        enqueue_large(site)
    for key, content in stored:
        store.put(key, content)


TASK_WRONG_LOOPS: dict[str, TaskScenario] = {
    "wrong_task_ack_before_the_result": TaskScenario(
        prepare=one, run=ack_before_the_result, effects=Counter("a"), states=Counter(succeeded=1)
    ),
    "wrong_task_enqueue_before_the_content": TaskScenario(
        prepare=nothing,
        run=enqueue_before_the_content,
        recover=enqueue_large,
        effects=Counter(["large x"]),
        states=Counter(succeeded=1),
    ),
    "wrong_task_enqueue_without_an_id": TaskScenario(
        prepare=nothing,
        run=enqueue_without_an_id,
        recover=enqueue_without_an_id,
        effects=Counter(("a", "b", "join")),
        states=Counter(succeeded=3),
    ),
    "wrong_task_settle_without_asking": TaskScenario(
        prepare=one_that_may_be_tried_once,
        run=work_as_child,
        settle=settle_without_asking,
        effects=Counter("a"),
        states=Counter(succeeded=1),
        or_else=(Counter(), Counter(dead_lettered=1)),
        is_child=True,
    ),
}
