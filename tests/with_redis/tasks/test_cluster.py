"""Tasks on a real cluster of three nodes: each queue is on one of them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from conquiet import EmbeddedServer
from conquiet.mq import Topics
from conquiet.tasks import (
    Beat,
    BeatConfig,
    MessageTarget,
    TaskApp,
    TaskContext,
    TaskFailedError,
    Worker,
    WorkerConfig,
    chord,
    clock,
    group,
)
from tests.eventually import eventually
from tests.with_redis.tasks.conftest import QUICK

PATIENCE_S = 600.0
QUEUES = ("a", "b", "c", "d")


@pytest.fixture
def clustered() -> Iterator[TaskApp]:
    with (
        EmbeddedServer(cluster=3) as server,
        TaskApp(server.url, namespace=f"tasks-{uuid.uuid4().hex[:10]}") as app,
    ):
        yield app


def test_queues_on_every_node_retries_chords_and_dead_letters_work(clustered: TaskApp) -> None:
    app = clustered

    @app.task(max_retries=2, retry=QUICK)
    def second_time(number: int, ctx: TaskContext) -> int:
        if ctx.attempt == 0:
            raise ValueError("not yet")
        return number

    @app.task(queue="d")
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    @app.task(max_retries=0, queue="c")
    def fail() -> None:
        raise KeyError("x")

    with Worker(app, WorkerConfig(pool="thread", concurrency=2, queues=QUEUES, heartbeat_ttl_s=20)):
        calls = [second_time.with_options(queue=queue).call(index) for index, queue in enumerate(QUEUES)]
        delayed = total.with_options(delay_s=0.1).enqueue([1, 2])

        assert chord(calls, total.partial()).enqueue().result(PATIENCE_S) == 6
        assert group(calls).enqueue().results(PATIENCE_S) == [0, 1, 2, 3]
        assert delayed.result(PATIENCE_S) == 3
        with pytest.raises(TaskFailedError, match="KeyError"):
            fail.enqueue().result(PATIENCE_S)

    assert app.queues() == list(QUEUES)


def test_rates_revocations_control_and_retries_work(clustered: TaskApp) -> None:
    app = clustered

    @app.task(name="rare", rate_limit="1/h")
    def rare(number: int) -> int:
        return number

    @app.task(name="fail", max_retries=0)
    def fail() -> None:
        raise KeyError("x")

    config = WorkerConfig(pool="thread", concurrency=2, queues=QUEUES, heartbeat_ttl_s=2, name="w")
    with Worker(app, config):
        handles = [rare.with_options(queue=queue).enqueue(1) for queue in QUEUES for _ in range(3)]
        eventually(lambda: sum(app.control.queue(queue).waiting for queue in QUEUES) == 8)
        assert app.control.ping(timeout_s=PATIENCE_S).keys() == {"w"}
        assert all(app.control.pause(queue, timeout_s=PATIENCE_S)["w"] is not None for queue in QUEUES)
        revoked = fail.with_options(queue="b").enqueue()
        assert revoked.revoke().is_revoked
        for queue in QUEUES:
            app.control.resume(queue, timeout_s=PATIENCE_S)
            app.control.set_rate("rare", "1000/s", queue=queue, timeout_s=PATIENCE_S)
        assert {handle.result(PATIENCE_S) for handle in handles} == {1}
        failed = fail.with_options(queue="b").enqueue()
        with pytest.raises(TaskFailedError):
            failed.result(PATIENCE_S)
        with pytest.raises(TaskFailedError):
            app.handle(app.control.retry(failed.id, queue="b")).result(PATIENCE_S)

    with pytest.raises(TaskFailedError, match="revoked"):
        revoked.result(PATIENCE_S)
    assert app.control.workers() == []


def test_a_beat_enqueues_each_occurrence_once_into_queues_on_every_node(
    clustered: TaskApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing() -> None: ...

    app = clustered
    topic = f"{app.namespace}-topic"
    Topics(app.client).create(topic, partitions=3)
    for queue in QUEUES:
        # Without a result there is no record by which a second one would be known.
        options = {"queue": queue, "ignore_result": queue in "ab"}
        app.schedule(queue, app.task(name=f"of {queue}", **options)(nothing), every=60, catch_up="all")
    app.schedule("m", MessageTarget(kind="topic", name=topic, payload={"n": 1}), every=60, catch_up="all")
    app.schedule("s", MessageTarget(kind="stream", name=f"{app.namespace}-s", payload={"n": 1}), every=60)
    try:
        clock.set_clock(1_767_225_600_000)
        beat = Beat(app, BeatConfig(name="first"))
        beat.apply_declared()
        clock.set_clock(1_767_225_600_000 + 180_000)
        assert beat.tick().claimed == 17
        store = app.schedules.store
        # It has delivered, and dies before that is confirmed.
        pending = store.tick("first", 1, lease_ms=10_000, most=100).pending
        assert len(pending) == 17
        beat._deliveries.deliver(pending[:9], 100)
        monkeypatch.setattr(store, "confirm", lambda _: None)
        beat._deliveries.deliver(pending[9:], 100)
        monkeypatch.undo()
        clock.set_clock(1_767_225_600_000 + 200_000)
        other = Beat(app, BeatConfig(name="other"))
        while other.tick().wait_ms == 0:
            pass
    finally:
        clock.set_clock(None)

    client: Any = app.client
    for queue in QUEUES:
        entries = [
            json.loads(fields[b"data"])["id"] for _, fields in client.xrange(app.keys(queue).streams[5])
        ]
        assert entries == [f"beat:{queue}:{1_767_225_600_000 + number * 60_000}" for number in (1, 2, 3)]
    keys = Topics(app.client).open(topic).keys
    assert sum(client.xlen(keys.stream(number)) for number in range(3)) == 3
    assert client.xlen(f"{app.namespace}-s") == 2
    assert app.schedules.stats().pending == 0
    assert app.queues() == list(QUEUES)
