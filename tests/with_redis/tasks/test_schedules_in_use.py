"""Schedules in an application: signed and encrypted, in a test bed, and for the upkeep of streams."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from conquiet import QueueConfig, RedisStreamsQueue
from conquiet.mq import DeadLetter, DeadLetters, Producer, Topics, drain_topic
from conquiet.tasks import (
    Beat,
    DirectoryPayloads,
    TaskApp,
    TaskContext,
    TaskTooLargeError,
    Worker,
    WorkerConfig,
    add_maintenance,
    clock,
)
from conquiet.tasks.keys import BeatKeys
from conquiet.tasks.security import Encryption, HmacKey, Signing
from conquiet.testing import TaskTestBed
from tests.eventually import HANG_S

SIGNING = Signing({"k": HmacKey(b"x" * 32)}, "k")
HOUR = timedelta(hours=1)


def test_a_schedule_that_was_not_signed_is_not_enqueued_and_arguments_are_kept_encrypted(
    server_url: str, app: TaskApp
) -> None:
    encryption = Encryption({"k": b"y" * 32}, "k")
    with TaskApp(server_url, namespace=app.namespace, signing=SIGNING, encryption=encryption) as signed:
        try:
            clock.set_clock(1_767_225_600_000)
            signed.schedule("good", "bill", {"card": "4711"}, every=HOUR)
            beat = Beat(signed)
            beat.apply_declared()
            app.schedules.apply(app.new_schedule("bad", "bill", {"card": "0815"}, every=HOUR))
            keys, client = BeatKeys(app.namespace), app.client
            # A definition that was signed, of another name.
            stolen: Any = client.hget(keys.schedule("good"), "definition")
            app.schedules.apply(app.new_schedule("stolen", "bill", every=HOUR))
            client.hset(keys.schedule("stolen"), "definition", stolen)
            clock.set_clock(1_767_225_600_000 + 3_600_000)
            while beat.tick().wait_ms == 0:
                pass
        finally:
            clock.set_clock(None)

        assert b"4711" not in stolen
        entries: Any = app.client.xrange(app.keys("default").streams[5])
        [envelope] = [signed.codec.decode(fields[b"data"]) for _, fields in entries]
        assert (envelope.id, envelope.args) == ("beat:good:1767229200000", {"card": "4711"})
        errors = {one.name: one.error for one in signed.schedules.stored()}
        assert "no signature" in (errors["bad"] or "")
        assert "its definition is of" in (errors["stolen"] or "")
        assert errors["good"] is None


def test_after_a_key_was_replaced_a_schedule_that_is_applied_again_has_the_new_one(app: TaskApp) -> None:
    keys = {"k": HmacKey(b"x" * 32), "new": HmacKey(b"z" * 32)}

    def apply(signing: Signing) -> tuple[int, bool]:
        app.codec.signing = signing
        return app.schedules.apply(app.new_schedule("s", "any", every=HOUR))

    assert [apply(Signing(keys, "k")), apply(Signing(keys, "k"))] == [(1, True), (1, False)]
    assert [apply(Signing(keys, "new")), apply(Signing(keys, "new"))] == [(2, True), (2, False)]
    app.codec.signing = Signing({"new": keys["new"]}, "new")
    assert app.schedules.get("s").version == 2


def test_a_disabled_schedule_stays_so_when_it_is_applied_after_its_key_was_removed(app: TaskApp) -> None:
    schedule = app.new_schedule("s", "any", every=HOUR)
    app.codec.signing = SIGNING
    app.schedules.apply(schedule)
    app.schedules.disable("s")

    app.codec.signing = Signing({"new": HmacKey(b"z" * 32)}, "new")
    assert app.schedules.apply(schedule) == (3, True)

    kept = app.schedules.get("s")
    assert (kept.stored.is_enabled, kept.next_at) == (False, None)


def test_a_definition_that_is_too_large_is_refused_also_with_a_payload_store(
    server_url: str, app: TaskApp, tmp_path: Path
) -> None:
    with TaskApp(server_url, namespace=app.namespace, max_bytes=2_000) as small:
        small.payload_store = DirectoryPayloads(tmp_path)
        before = list(tmp_path.rglob("*"))
        with pytest.raises(
            TaskTooLargeError, match=r"the definition of schedule 's' has .* bytes"
        ) as refused:
            small.schedules.apply(small.new_schedule("s", "any", {"text": "x" * 3_000}, every=HOUR))

        assert "payload_store" not in str(refused.value)
        assert list(small.schedules.stored()) == []
        assert list(tmp_path.rglob("*")) == before


def test_a_test_bed_runs_schedules_with_its_clock() -> None:
    app, ran = TaskApp(), []

    @app.task(name="report")
    def report(kind: str, ctx: TaskContext) -> None:
        ran.append((kind, ctx.meta["schedule"]["name"]))

    app.schedule("nightly", report, {"kind": "night"}, every=HOUR, catch_up="all")
    with TaskTestBed(app) as bed:
        bed.run_beat()
        bed.run_until_idle()
        assert ran == []

        bed.move_clock(hours=3)
        bed.run_beat()
        bed.run_until_idle()
        assert ran == [("night", "nightly")] * 3


def test_maintenance_tasks_trim_prune_and_claim_what_dead_consumers_left(
    app: TaskApp, engine: Engine
) -> None:
    handled = []
    add_maintenance(app, handlers={"bill": lambda msg, session: handled.append(msg.payload)})
    stream, topic = f"{app.namespace}-orders", f"{app.namespace}-topic"
    letters = DeadLetters(Topics(app.client).create(topic))
    Producer(app.client).send_many(topic, [{"n": n} for n in range(8)])
    drain_topic(letters.topic, "g", lambda msg: DeadLetter("no"), until="empty")
    for name in ("dead", "other"):
        RedisStreamsQueue(app.client, QueueConfig(stream, "g", name)).enqueue({"for": name})
        RedisStreamsQueue(app.client, QueueConfig(stream, "g", name)).read(10, 1)
    with Worker(app, WorkerConfig(pool="thread", concurrency=1)):

        def run(task: str, /, **args: Any) -> Any:
            return app.enqueue(f"conquiet.{task}", args).result(HANG_S)

        assert run("claim_stale", name=stream, group="g", to="new", min_idle_s=0, limit=1) == 1
        assert run("claim_stale", name=stream, group="g", handler="bill", min_idle_s=0) == 2
        pruned = run("prune_consumers", name=stream, group="g")
        assert {"dead", "other", "new"} <= set(pruned)
        assert run("trim", name=stream, keep=1) == 1
        assert run("trim_dead_letters", name=topic, keep=5) == 3
        assert len(letters.list().letters) == 5
    assert handled == [{"for": "dead"}, {"for": "other"}]


def test_dead_letters_are_trimmed_on_schedule() -> None:
    app = TaskApp()
    add_maintenance(app)
    app.schedule("retention", "conquiet.trim_dead_letters", {"name": "orders", "keep": 5}, every=HOUR)
    with TaskTestBed(app) as bed:
        topic = Topics(app.client).create("orders")
        Producer(app.client).send_many("orders", [{"n": n} for n in range(8)])
        drain_topic(topic, "g", lambda msg: DeadLetter("no"), until="empty")
        bed.run_beat()

        bed.move_clock(hours=1)
        bed.run_beat()
        bed.run_until_idle()

        assert len(DeadLetters(topic).list().letters) == 5


def test_a_handler_that_was_not_given_is_not_called(app: TaskApp) -> None:
    add_maintenance(app)

    with pytest.raises(ValueError, match="was given no handler"):
        app.tasks["conquiet.claim_stale"](name="s", group="g", handler="os:system")


def test_no_app_has_maintenance_tasks_by_itself(app: TaskApp) -> None:
    assert json.dumps(sorted(app.tasks)) == '["conquiet.gather"]'
