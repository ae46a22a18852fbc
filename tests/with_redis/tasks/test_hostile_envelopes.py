"""What anybody may write into the stream of a queue ends no worker: each entry runs, or is a dead letter."""

from __future__ import annotations

import json
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conquiet.tasks import TaskApp, Worker, WorkerConfig
from conquiet.tasks.canvas.follow_ups import FollowUps
from conquiet.tasks.security import Ed25519Key, Encryption, HmacKey, Signing
from conquiet.tasks.worker.background import in_thread
from conquiet.tasks.worker.dead_workers import DeadWorkers
from tests.eventually import eventually
from tests.with_redis.tasks.conftest import QUICK, StartWorker

PATIENCE_S = 600.0

Fields = dict[str, Any]


def changed(**changes: Any) -> Callable[[Fields], Fields]:
    """The envelope with other fields."""
    return lambda fields: fields | changes


def with_meta(**meta: Any) -> Callable[[Fields], Fields]:
    """The envelope with this in its meta, in the place of all that a caller has there."""
    return lambda fields: fields | {"meta": {"schemaVersion": 1} | meta}


def nested(levels: int) -> str:
    """Lists in lists: a text that `add` writes as it is, as Python would not encode what it stands for."""
    return f"{'[' * levels}{']' * levels}"


def unknown(**changes: Any) -> Callable[[Fields], Fields]:
    """The envelope of a task that no worker knows."""
    return changed(name="nobody", **changes)


DEPTHS = range(900, 1_000, 8)
#: By what each is: run, or a dead letter.
RUN = {
    "a time without an offset": changed(enqueuedAt="0001-01-01T00:00:00"),
    "a time of the last year": changed(enqueuedAt="9999-12-31T23:59:59+00:00"),
    "headers that are no texts": changed(
        headers={"signature": 5, "signature-key": ["one"], "traceparent": {}}
    ),
    "a canvas that is none": with_meta(canvas={"id": ["c"], "then": [], "member": None}),
    "a canvas whose steps wait for ever": with_meta(
        canvas={
            "id": "d",
            "then": [{"envelope": {}, "into": None, "delayMs": 1e300}],
            "member": None,
        }
    ),
    "an attempt of the far future": changed(attempt=10**30),
}
DEAD_LETTERS = {
    "a time before the first one": changed(enqueuedAt="0001-01-01T00:00:00+14:00"),
    "a time behind the last one": changed(notBefore="9999-12-31T23:59:59-14:00"),
    "a schema version that is no number": with_meta(schemaVersion="2"),
    "meta without a version": changed(meta={"expiresAt": "tomorrow"}),
    "a retry that does not fit the task's": with_meta(retry={"baseDelayMs": 50_000}),
    "a delay that no clock has": with_meta(retry={"baseDelayMs": 1, "maxDelayMs": 10**30}),
    "a limit that is no float": with_meta(softTimeLimitMs=10**400),
    "a result that is kept for ever": with_meta(resultTtlMs=10**19),
    # Somewhere here is what can be read, and not be written again with more around it.
    **{f"{levels} levels of arguments": unknown(args={"deep": nested(levels)}) for levels in DEPTHS},
    **{f"{levels} levels of a canvas": unknown(meta={"canvas": nested(levels)}) for levels in DEPTHS},
    **{
        f"{levels} levels of steps": unknown(meta={"canvas": {"id": "d", "then": nested(levels)}})
        for levels in DEPTHS
    },
}


def declare(app: TaskApp) -> Any:
    @app.task(name="one", max_retries=0, retry=QUICK)
    def one() -> int:
        return 1

    return one


def add(app: TaskApp, task: Any, change: Callable[[Fields], Fields]) -> None:
    fields = change(json.loads(app.codec.encode(app.envelope(task.call())).data))
    text = re.sub(r'"(\[+\]+)"', r"\1", json.dumps(fields))
    app.client.xadd(app.keys("default").streams[5], {"data": text})


def test_each_entry_is_run_or_a_dead_letter_and_ends_no_worker(app: TaskApp, start: StartWorker) -> None:
    one, keys = declare(app), app.keys("default")
    worker = start()
    # From now on the worker looks for what is revoked.
    app.control.revoke("other", queue="default")
    one.enqueue().result(PATIENCE_S)

    for change in (*RUN.values(), *DEAD_LETTERS.values()):
        add(app, one, change)
    eventually(lambda: not worker.is_running or app.client.xlen(keys.streams[5]) == 0)

    assert worker.is_running
    assert one.enqueue().result(PATIENCE_S) == 1
    assert app.client.xlen(keys.dead_letters) == len(DEAD_LETTERS)


def test_entries_with_the_same_id_are_each_handed_back_while_a_task_runs_for_long(
    app: TaskApp, start: StartWorker
) -> None:
    ran: list[int] = []
    is_over = threading.Event()

    @app.task(name="long")
    def long() -> None:
        is_over.wait(PATIENCE_S)

    @app.task(name="note")
    def note(number: int) -> None:
        ran.append(number)

    keys = app.keys("default")
    long.enqueue()
    for number in range(2):
        envelope = app.envelope(note.call(number))
        envelope.id = "twice"
        app.client.xadd(keys.streams[5], {"data": app.codec.encode(envelope).data})
    start(prefetch_multiplier=10)
    eventually(lambda: app.control.queue("default").waiting == 2)
    is_over.set()
    eventually(lambda: app.client.xlen(keys.streams[5]) == 0)

    assert sorted(ran) == [0, 1]


@pytest.fixture
def sealed(valkey_url: str) -> Iterator[Callable[..., TaskApp]]:
    opened: list[TaskApp] = []

    def make(**seals: Any) -> TaskApp:
        opened.append(TaskApp(valkey_url, namespace=f"tasks-{uuid.uuid4().hex[:10]}", **seals))
        return opened[-1]

    yield make
    for app in opened:
        app.close()


@pytest.mark.parametrize(
    "headers",
    [
        {"signature-key": ["one"], "signature": "AAAA"},
        {"signature-key": "one", "signature": 5},
        {"signature-key": {"one": 1}, "signature": {}},
        {"signature-key": "one", "signature": "AAAA", "deep": nested(900)},
    ],
    ids=["a list", "a number", "objects", "nested"],
)
def test_a_signature_of_another_kind_is_a_bad_one(sealed: Callable[..., TaskApp], headers: Fields) -> None:
    for key in (HmacKey(os.urandom(32)), Ed25519Key.generate()):
        app = sealed(signing=Signing({"one": key}, "one"))
        one, letters = declare(app), app.keys("default").dead_letters
        with Worker(app, WorkerConfig(pool="thread", concurrency=1)) as worker:
            one.enqueue().result(PATIENCE_S)
            add(app, one, changed(headers=headers))
            while worker.is_running and not app.client.xlen(letters):
                time.sleep(0.01)
            assert one.enqueue().result(PATIENCE_S) == 1


def test_an_encryption_key_of_another_kind_is_a_bad_one(sealed: Callable[..., TaskApp]) -> None:
    app = sealed(encryption=Encryption({"e": os.urandom(32)}, "e"))
    one = declare(app)
    with Worker(app, WorkerConfig(pool="thread", concurrency=1)) as worker:
        one.enqueue().result(PATIENCE_S)
        for key in (["e"], {"e": 1}, 5):
            add(app, one, changed(headers={"encryption-key": key}))
        eventually(lambda: not worker.is_running or app.client.xlen(app.keys("default").dead_letters) == 3)
        assert one.enqueue().result(PATIENCE_S) == 1


def test_what_is_to_follow_and_cannot_be_done_keeps_nothing_from_being_taken_over(app: TaskApp) -> None:
    keys = app.keys("default")
    fork = {"group": "g", "queue": "default", "onError": "fail", "members": []}
    far = {"envelope": declare(app).call().envelope(app.defaults).fields(), "into": None, "delayMs": 1e300}
    position = {"id": "c", "member": None}
    for number, facts in enumerate(
        (
            {"state": "dead_lettered", "canvas": position | {"then": [fork]}, "error": "", "result": None},
            {"state": "succeeded", "canvas": position | {"then": [far]}, "error": "", "result": None},
        )
    ):
        app.client.hset(keys.follow_ups, f"t{number}", json.dumps({"at": 0} | facts))
    app.client.hset(keys.follow_ups, "t2", "[" * 100_000)

    assert FollowUps(app).perform_left("default") == 0
    assert app.client.hlen(keys.follow_ups) == 3


def test_an_unexpected_error_ends_no_thread_that_takes_over(
    app: TaskApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looked: list[str] = []

    def fail(_has_ended: threading.Event, queue: str) -> None:
        looked.append(queue)
        raise ZeroDivisionError("of a library")

    takers = DeadWorkers(app, WorkerConfig(pool="thread", heartbeat_ttl_s=0.1), ())
    monkeypatch.setattr(takers, "_take_over", fail)
    with in_thread(takers):
        eventually(lambda: len(looked) > 2)

    assert "ZeroDivisionError: of a library" in caplog.text
