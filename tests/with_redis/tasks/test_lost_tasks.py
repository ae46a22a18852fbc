"""A failover that loses tasks is reported by the workers of their queue."""

from __future__ import annotations

import logging

import pytest

from conquiet.operations import diagnose
from conquiet.operations.queues import queue_facts
from conquiet.tasks import Task, TaskApp
from tests.eventually import eventually
from tests.with_redis.mq.consuming import metric
from tests.with_redis.tasks.conftest import StartWorker

PATIENCE_S = 600.0


@pytest.fixture
def add(app: TaskApp) -> Task[..., int]:
    @app.task
    def add(a: int) -> int:
        return a + 1

    return add


def last_id(app: TaskApp) -> bytes:
    end: bytes = app.client.xinfo_stream(app.keys("default").streams[5])["last-generated-id"]
    return end


@pytest.mark.parametrize("has_mark", [True, False])
def test_what_a_failover_has_lost_of_a_queue_is_reported(
    app: TaskApp, add: Task[..., int], start: StartWorker, caplog: pytest.LogCaptureFixture, has_mark: bool
) -> None:
    """As a replica that lagged: stream and mark are as they were before; the mark may not have been there."""
    caplog.set_level(logging.WARNING, logger="conquiet")
    keys = app.keys("default")
    stream, mark = keys.streams[5], keys.ends[5]
    start()
    assert add.enqueue(1).result(PATIENCE_S) == 2
    eventually(lambda: app.client.hget(mark, "lastId") == last_id(app))
    before = {key: app.client.dump(key) for key in ([stream, mark] if has_mark else [stream])}
    kept = last_id(app)
    for number in range(5):
        assert add.enqueue(number).result(PATIENCE_S) == number + 1
    eventually(lambda: app.client.hget(mark, "lastId") == last_id(app))
    lost = last_id(app)

    with app.client.pipeline() as failover:
        failover.delete(stream, mark)
        for key, dump in before.items():
            assert dump is not None
            failover.restore(key, 0, dump)
        failover.execute()

    eventually(lambda: any("has lost entries" in line for line in caplog.messages))
    (line,) = (line for line in caplog.messages if "has lost entries" in line)
    assert f"behind {kept.decode()}, up to {lost.decode()} at least" in line
    eventually(lambda: metric("conquiet_queue_messages_lost_total", stream=stream) > 0)
    facts = queue_facts(app.client, "default", namespace=app.namespace)
    assert [one.check for one in diagnose([], queues=[facts]) if one.level == "error"] == ["loss"]
    assert add.enqueue(7).result(PATIENCE_S) == 8


def test_tasks_that_have_ended_are_no_loss(
    app: TaskApp, add: Task[..., int], start: StartWorker, caplog: pytest.LogCaptureFixture
) -> None:
    """Their entries are deleted; Redis 6.2 does not even remember that."""
    caplog.set_level(logging.WARNING, logger="conquiet")
    mark = app.keys("default").ends[5]
    start()
    for _ in range(3):
        for handle in [add.enqueue(number) for number in range(20)]:
            handle.result(PATIENCE_S)
        eventually(lambda: app.client.hget(mark, "lastId") == last_id(app))

    assert [line for line in caplog.messages if "has lost" in line or "was deleted" in line] == []
