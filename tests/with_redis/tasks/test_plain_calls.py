"""Calls without options of their own, which are written in a shorter way: to the effect of all others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from conquiet.tasks import Task, TaskApp, TaskArgumentsError, TaskTooLargeError
from tests.with_redis.tasks.conftest import StartWorker

PATIENCE_S = 600.0


class Size(IntEnum):
    LARGE = 3


class Colour(Enum):
    RED = "red"


@dataclass
class Line:
    sku: str
    price: Decimal


@dataclass
class Weight:
    kg: float


class Parcel(BaseModel):
    weight: float | None = None
    lines: list[Weight] = []


class Order(BaseModel):
    id: UUID
    lines: list[Line]
    note: str | None = None


VALUES: list[tuple[Any, Any]] = [
    (int, 7),
    (int, -(10**30)),
    (int, "12"),
    (bool, True),
    (str, 'quoted " and \\ and \n, ü, 😀, \x00'),
    (str, "NaN or Infinity"),
    (float, 1),
    (float, 1e300),
    (float, 0.1),
    (float, -0.0),
    (Decimal, Decimal("1.10")),
    (datetime, datetime(2026, 3, 29, 2, 30, tzinfo=UTC)),
    (date, date(2026, 3, 29)),
    (timedelta, timedelta(days=1, milliseconds=5)),
    (UUID, UUID(int=5)),
    (Colour, Colour.RED),
    (Size, Size.LARGE),
    (bytes, b"plain"),
    (set[int], {4}),
    (tuple[int, str], (1, "a")),
    (dict[int, float], {1: 2.5}),
    (dict[str, Any], {"a": [1, None, {"b": (2, 3)}], "NaN": 1.0}),
    (Any, {"a": [1, 2.5, None, True, "ü"]}),
    (int | None, None),
    (Line, Line("a", Decimal("1.10"))),
    (Order, Order(id=UUID(int=7), lines=[Line("a", Decimal(2))])),
    (list[Order], []),
    (Parcel, Parcel(lines=[Weight(0.5)])),
    (list[int | None], [1, None]),
    (str, "null"),
]

#: What JSON does not have, or cannot bring back.
REFUSED: list[tuple[Any, Any]] = [
    (float, float("nan")),
    (float, float("-inf")),
    (dict[str, Any], {"a": [float("inf")]}),
    (Any, float("nan")),
    (Any, (1, 2)),
    (Any, {1: 2}),
    (str, "\ud800"),
    (dict[str, Any], {"a": "\ud800"}),
    (dict[str, Any], {"a": object()}),
    (int, "seven"),
    (Order, {"id": 5}),
    (Parcel, Parcel(weight=float("nan"))),
    (Parcel, Parcel(lines=[Weight(float("-inf"))])),
    (list[Parcel], [Parcel(weight=float("inf"))]),
    (Weight, Weight(float("nan"))),
]


def declare(app: TaskApp, hint: Any, name: str = "take", **options: Any) -> Task[..., None]:
    def take(value: Any) -> None: ...

    take.__annotations__["value"] = hint
    return app.task(name=name, **options)(take)


def written(app: TaskApp, priority: int = 5) -> list[dict[str, Any]]:
    """The envelopes in the queue, in order, without what each has anew; their fields are in their order."""
    entries: Any = app.client.xrange(app.keys("default").streams[priority])
    envelopes = [json.loads(fields[b"data"]) for _, fields in entries]
    for envelope in envelopes:
        assert envelope.pop("id")
        assert datetime.fromisoformat(envelope.pop("enqueuedAt")).tzinfo is not None
    return [dict(envelope) for envelope in envelopes]


def records(app: TaskApp, ids: list[str]) -> list[Mapping[bytes, bytes]]:
    """The records of tasks, without the times in the names of their fields."""
    found: list[Any] = [app.client.hgetall(app.keys("default").record(one)) for one in ids]
    return [{name.partition(b":")[0]: value for name, value in record.items()} for record in found]


@pytest.mark.parametrize(("hint", "value"), VALUES, ids=[*map(str, range(len(VALUES)))])
def test_a_plain_call_is_written_as_any_other(app: TaskApp, hint: Any, value: Any) -> None:
    task = declare(app, hint)
    # The first one makes the queue.
    first = task.enqueue(value)

    plain = task.enqueue(value)
    other = app.send(task.call(value))

    envelopes, ids = written(app), [first.id, plain.id, other.id]
    assert [list(one) for one in envelopes] == [list(envelopes[0])] * 3
    assert envelopes == [envelopes[0]] * 3
    # Compared as text too: 1 and 1.0 and True are equal.
    assert len({json.dumps(one["args"]) for one in envelopes}) == 1
    assert records(app, ids) == [{b"state": b"queued", b"name": b"take", b"at": b"{}"}] * 3
    ttl_ms = [app.client.pttl(app.keys("default").record(one)) for one in ids]
    assert max(ttl_ms) - min(ttl_ms) < 86_400_000 < min(ttl_ms)
    assert plain.is_new
    assert plain.queue == "default"


@pytest.mark.parametrize(("hint", "value"), REFUSED, ids=[*map(str, range(len(REFUSED)))])
def test_a_plain_call_refuses_what_any_other_refuses(app: TaskApp, hint: Any, value: Any) -> None:
    task = declare(app, hint)
    # The first call of a queue is written the longer way.
    declare(app, Any, name="first").enqueue(None)

    with pytest.raises((TaskArgumentsError, ValueError)) as of_another:
        app.send(task.call(value))
    with pytest.raises((TaskArgumentsError, ValueError)) as of_a_plain_one:
        task.enqueue(value)

    assert repr(of_a_plain_one.value) == repr(of_another.value)
    assert [one["name"] for one in written(app)] == ["first"]


def test_arguments_are_complete_and_known(app: TaskApp) -> None:
    task = declare(app, int)

    for args, given in (((), {}), ((1,), {"other": 2}), ((1, 2), {}), ((1,), {"value": 1})):
        with pytest.raises(TaskArgumentsError):
            task.enqueue(*args, **given)

    assert not app.client.exists(app.keys("default").streams[5])


def test_options_of_a_plain_call_are_in_its_envelope(app: TaskApp) -> None:
    task = declare(app, int, max_retries=7)
    changed = task.with_options(max_retries=9, visibility_timeout_s=5, hard_time_limit_s=2, priority=5)

    for _ in range(2):
        changed.enqueue(1)
        app.send(changed.call(1))
        task.enqueue(1)

    first, *_, last = envelopes = written(app)
    assert envelopes == [first, first, last] * 2
    assert (first["maxRetries"], first["visibilityTimeout"], last["maxRetries"]) == (9, 5000, 7)
    assert first["meta"] == {"schemaVersion": 1, "hardTimeLimitMs": 2000}


def test_a_plain_call_without_a_result_has_no_record(app: TaskApp) -> None:
    task = declare(app, int).with_options(ignore_result=True)
    handles = [task.enqueue(1) for _ in range(2)]

    assert [one.status() for one in handles] == [None, None]
    assert [one["meta"] for one in written(app)] == [{"schemaVersion": 1, "ignoreResult": True}] * 2


def test_a_change_of_the_headers_is_seen_by_the_next_call(app: TaskApp) -> None:
    headers = {"tenant": "a"}
    task = declare(app, int, headers=headers)
    task.enqueue(1)

    task = task.with_options(headers={"tenant": "b"})
    task.enqueue(1)

    assert [one["headers"] for one in written(app)] == [{"tenant": "a"}, {"tenant": "b"}]


def test_what_a_call_differs_in_is_seen_after_its_task_is_declared_anew(app: TaskApp) -> None:
    def take(value: int) -> None: ...

    task = app.task(name="take", result_ttl_s=60)(take)
    task.enqueue(1)

    app.task(name="take", result_ttl_s=90)(take)
    task.enqueue(1)

    assert [one["meta"].get("resultTtlMs") for one in written(app)] == [None, 60_000]


def test_a_plain_call_that_is_too_large_is_refused(server_url: str, app: TaskApp) -> None:
    with TaskApp(server_url, namespace=app.namespace, max_bytes=1_000) as small:
        task = declare(small, str)

        task.enqueue("a" * 500)
        with pytest.raises(TaskTooLargeError):
            task.enqueue("a" * 1_000)

        assert len(written(small)) == 1


def test_a_plain_call_finds_a_server_that_has_lost_all_keys(app: TaskApp, start: StartWorker) -> None:
    @app.task
    def double(value: int) -> int:
        return 2 * value

    for _ in range(2):
        double.enqueue(1)
    app.client.delete(*app.client.scan_iter(f"{app.namespace}:*"))
    app.client.script_flush()

    handle = double.enqueue(4)
    assert app.queues() == ["default"]
    start(queues=("default",))

    assert handle.result(PATIENCE_S) == 8


def test_listeners_get_plain_calls(app: TaskApp) -> None:
    task = declare(app, int)
    for _ in range(2):
        task.enqueue(1)

    with app.events(["default"], idle_s=5.0) as events:
        handle = task.enqueue(1)
        event = next(iter(events))

    assert (event.id, event.kind) == (handle.id, "queued")
