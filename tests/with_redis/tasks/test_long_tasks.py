"""What a worker does beside a task that runs for long."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from conquiet.consume.outcome import Ack
from conquiet.tasks import TaskApp, WorkerConfig, scripts
from conquiet.tasks.channel import TaskChannel
from conquiet.tasks.message import TaskMessage
from conquiet.tasks.settlement import TaskSettlement
from conquiet.tasks.worker.long_tasks import LongTasks


@pytest.fixture
def app(app: TaskApp) -> TaskApp:
    @app.task(name="one")
    def one() -> None:
        """Nothing."""

    return app


def open_channel(app: TaskApp, follow: Callable[..., object] = lambda *_: None) -> TaskChannel:
    return TaskChannel(app.client, [app.keys("default")], "worker.0", app, prefetch=10, follow=follow)


class Failing:
    """What follows on the first task raises."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *_: object) -> None:
        self.calls += 1
        if self.calls == 1:
            raise RuntimeError("what follows failed")


def test_all_of_a_batch_are_settled_once_though_what_follows_on_the_first_raises(
    app: TaskApp, caplog: pytest.LogCaptureFixture
) -> None:
    app.tasks["one"].enqueue_many([{}] * 3)
    follow = Failing()
    channel = open_channel(app, follow)
    settlements = [channel.decide(msg, Ack(), 0.0) for msg in channel.read((), 10, 1).messages]
    settlements = [replace(cast(TaskSettlement, one), follow_up='{"at": 0}') for one in settlements]

    with pytest.raises(RuntimeError, match="what follows failed"):
        channel.settle(settlements)
    channel.settle(settlements)

    assert [one.is_done for one in settlements] == [True] * 3
    assert [one.is_refused for one in settlements] == [False] * 3
    assert caplog.text == ""


def test_what_is_settled_again_after_a_lost_reply_is_not_said_to_be_another_workers_alone(
    app: TaskApp, caplog: pytest.LogCaptureFixture
) -> None:
    handle = app.tasks["one"].enqueue()
    channel = open_channel(app)
    [msg] = channel.read((), 10, 1).messages
    channel.settle([channel.decide(msg, Ack(), 0.0)])

    with caplog.at_level(logging.WARNING):
        channel.settle([channel.decide(msg, Ack(), 0.0)])

    assert f"task {handle.id} of queue 'default' was not pending here any more" in caplog.text
    assert "settled by a call whose reply was lost, or taken over by another worker" in caplog.text


class Loop:
    """A loop in whose handler a task is, as far as `LongTasks` knows it."""

    def __init__(self, channel: TaskChannel, msg: TaskMessage) -> None:
        self.channel = channel
        self.running: tuple[TaskMessage, float] | None = (msg, time.monotonic() - 60)
        self.is_in_handler = True
        self.settled = 0

    def settle_while_handling(self, _msg: TaskMessage, then: Callable[[], object]) -> bool:
        if self.is_in_handler:
            self.settled += 1
            then()
        return self.is_in_handler


def test_an_attempt_is_seen_to_until_something_was_settled_and_again_when_it_has_begun_anew(
    app: TaskApp,
) -> None:
    handle = app.tasks["one"].enqueue()
    channel = open_channel(app)
    [msg] = channel.read((), 10, 1).messages
    msg.begins()
    loop: Any = Loop(channel, msg)
    long_tasks = LongTasks(app, WorkerConfig(pool="thread", concurrency=1), [loop])

    loop.is_in_handler = False
    long_tasks._see_to(0, loop)
    assert handle.status().state == "queued"  # type: ignore[union-attr]
    loop.is_in_handler = True
    long_tasks._see_to(0, loop)
    long_tasks._see_to(0, loop)
    assert (loop.settled, handle.status().state) == (1, "running")  # type: ignore[union-attr]

    # Handed back and read again, its delivery count is that of before.
    loop.running = (msg, time.monotonic() - 30)
    long_tasks._see_to(0, loop)
    assert loop.settled == 2


def test_a_task_that_waits_to_be_tried_again_is_not_said_to_run_by_who_comes_late(app: TaskApp) -> None:
    handle = app.tasks["one"].enqueue()
    keys = app.keys("default")
    ended: Any = {"state": "retried", "attempt": 1}
    app.client.hset(keys.record(handle.id), mapping=ended)

    for late in (0, 1):
        record = {"state": "running", "attempt": late}
        assert scripts.mark_running(app.client, keys, handle.id, record, 60_000) is False
    assert handle.status().state == "retried"  # type: ignore[union-attr]

    assert scripts.mark_running(app.client, keys, handle.id, {"progress": "{}"}, 60_000) is True
    assert scripts.mark_running(app.client, keys, handle.id, {"state": "running", "attempt": 2}, 60_000)
    assert handle.status().state == "running"  # type: ignore[union-attr]
