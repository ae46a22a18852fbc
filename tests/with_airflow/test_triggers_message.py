"""MessageTrigger behind Airflow's ack channel, driven as the triggerer drives it: nothing is lost."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import redis
from airflow.triggers.shared_stream import SharedStreamManager

from airflow_provider_conquiet.triggers import watched_stream
from airflow_provider_conquiet.triggers.message import MessageTrigger
from conquiet import EmbeddedServer, QueueConfig, RedisStreamsQueue
from conquiet.consume import dead_letter_stream
from conquiet.queue import StreamWriter
from tests.eventually import HANG_S, eventually
from tests.with_airflow.standalone import connection_to
from tests.with_redis.full_server import fill, server_of_its_own

BURST = 2_500


@pytest.fixture
def server_url(valkey_url: str) -> str:
    """One kind of server is enough here: what is sent to it is the core's."""
    return valkey_url


@pytest.fixture(autouse=True)
def connection(monkeypatch: pytest.MonkeyPatch, server_url: str) -> None:
    """The server as Airflow's default connection."""
    monkeypatch.setenv("AIRFLOW_CONN_REDIS_STREAMS_DEFAULT", connection_to(server_url))


class Triggerer:
    """What the triggerer does with triggers of the ack channel; `stores`: whether it stores their events."""

    def __init__(self, *, stores: bool = True, **settings: Any) -> None:
        self.manager = SharedStreamManager(**settings)
        self.stores = stores
        self.stored: list[dict] = []
        self.seen: list[dict] = []
        self.unstored: list[int] = []
        self._tasks: list[asyncio.Task] = []

    def watch(self, trigger: MessageTrigger) -> asyncio.Task:
        number = len(self._tasks) + 1
        task = asyncio.create_task(self._run(number, trigger))
        self._tasks.append(task)
        return task

    async def _run(self, number: int, trigger: MessageTrigger) -> None:
        key = trigger.shared_stream_key()
        shared = self.manager.subscribe(trigger_id=number, trigger=trigger, key=key)
        try:
            async for event in trigger.filter_shared_stream(shared):
                seq = self.manager.bind_pending_event(trigger_id=number, key=key)
                assert seq is not None
                self.seen.append(event.payload)
                if self.stores:
                    self.stored.append(event.payload)
                    self.manager.confirm_persisted([seq])
                else:
                    self.unstored.append(seq)
        finally:
            await self.manager.unsubscribe(number, key)

    def store_the_rest(self) -> None:
        self.manager.confirm_persisted(self.unstored)
        self.stored = list(self.seen)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.manager.stop_all()


@asynccontextmanager
async def triggerer(**settings: Any) -> AsyncIterator[Triggerer]:
    """A triggerer until the end of the block."""
    running = Triggerer(**settings)
    try:
        yield running
    finally:
        await running.stop()


async def until(check: Callable[[], object]) -> None:
    """`eventually`, for a loop that must go on meanwhile."""
    await asyncio.to_thread(eventually, check)


def pending(client: redis.Redis, stream: str, group: str = "watcher") -> int:
    return client.xpending(stream, group)["pending"]


def is_drained(client: redis.Redis, stream: str, group: str = "watcher") -> bool:
    info = {row["name"].decode(): row for row in client.xinfo_groups(stream)}.get(group)
    return info is not None and info["pending"] == 0 and info["lag"] == 0


def add(client: redis.Redis, stream: str, count: int) -> list[str]:
    pipeline = client.pipeline()
    for number in range(count):
        pipeline.xadd(stream, {"data": json.dumps({"number": number, "name": f"n{number}"})})
    return [entry_id.decode() for entry_id in pipeline.execute()]


def test_a_message_is_acked_after_its_event_is_stored_and_not_before(client: redis.Redis, stream: str):
    ids = add(client, stream, 3)

    async def scenario() -> None:
        async with triggerer() as running:
            running.stores = False
            running.watch(MessageTrigger(stream=stream, group="watcher"))
            await until(lambda: len(running.seen) == 3)
            assert pending(client, stream) == 3

            running.store_the_rest()
            await until(lambda: is_drained(client, stream))
            assert running.stored == [{"stream": stream, "group": "watcher", "id": i} for i in ids]

    asyncio.run(scenario())


def test_what_was_not_stored_when_the_triggerer_died_comes_again(client: redis.Redis, stream: str):
    ids = add(client, stream, 5)

    async def die_before_storing() -> None:
        async with triggerer() as running:
            running.stores = False
            running.watch(MessageTrigger(stream=stream, group="watcher"))
            await until(lambda: len(running.seen) == 5)

    async def start_again() -> list[str]:
        async with triggerer() as running:
            running.watch(MessageTrigger(stream=stream, group="watcher"))
            await until(lambda: is_drained(client, stream))
            return [event["id"] for event in running.stored]

    asyncio.run(die_before_storing())
    left = pending(client, stream)
    again = asyncio.run(start_again())

    assert left == 5
    assert again == ids


def test_a_trigger_that_is_cancelled_while_it_hands_an_event_over_loses_nothing(
    client: redis.Redis, stream: str
):
    add(client, stream, 1)

    async def scenario() -> None:
        manager = SharedStreamManager()
        trigger = MessageTrigger(stream=stream, group="watcher")
        key = trigger.shared_stream_key()
        events = trigger.filter_shared_stream(manager.subscribe(trigger_id=1, trigger=trigger, key=key))
        await anext(events)
        # Cancelled before the event was queued: Airflow takes the message for accepted.
        await manager.unsubscribe(1, key)
        await manager.stop_all()

    asyncio.run(scenario())

    assert pending(client, stream) == 1


def test_an_event_that_is_never_stored_leaves_its_message_pending_and_it_comes_again(
    client: redis.Redis, stream: str
):
    (entry_id,) = add(client, stream, 1)

    async def scenario() -> None:
        async with triggerer(ack_timeout=0.2) as running:
            running.stores = False
            first = running.watch(MessageTrigger(stream=stream, group="watcher", reread_s=0.1))
            await until(first.done)
            assert "AckTimeout" in type(first.exception()).__name__
            assert pending(client, stream) == 1

            running.stores = True
            running.watch(MessageTrigger(stream=stream, group="watcher", reread_s=0.1))
            await until(lambda: is_drained(client, stream))
            assert [event["id"] for event in running.stored] == [entry_id]

    asyncio.run(scenario())


def test_malformed_entries_become_dead_letters_and_block_nothing(client: redis.Redis, stream: str):
    client.xadd(stream, {"data": "no json"})
    client.xadd(stream, {"other": "field"})
    ids = add(client, stream, 2)

    async def scenario() -> list[str]:
        async with triggerer() as running:
            running.watch(MessageTrigger(stream=stream, group="watcher"))
            await until(lambda: is_drained(client, stream))
            return [event["id"] for event in running.stored]

    told = asyncio.run(scenario())

    assert told == ids
    assert client.xlen(dead_letter_stream(stream)) == 2


def test_a_message_on_which_the_match_raises_becomes_a_dead_letter_with_the_error(
    client: redis.Redis, stream: str
):
    client.xadd(stream, {"data": json.dumps({"no": "number"})})
    ids = add(client, stream, 4)

    async def scenario() -> list[str]:
        async with triggerer() as running:
            match = f"{__name__}:is_even"
            running.watch(MessageTrigger(stream=stream, group="watcher", match=match))
            await until(lambda: is_drained(client, stream))
            return [event["id"] for event in running.stored]

    told = asyncio.run(scenario())

    assert told == [ids[0], ids[2]]
    entries: Any = client.xrange(dead_letter_stream(stream))
    ((_, fields),) = entries
    letter = json.loads(fields[b"data"])
    assert letter["envelope"]["payload"] == {"no": "number"}
    assert "KeyError: 'number'" in letter["errorMessage"]


def is_even(payload: dict) -> bool:
    return payload["number"] % 2 == 0


def test_the_event_carries_the_fields_that_were_asked_for_and_refuses_large_ones(
    client: redis.Redis, stream: str
):
    add(client, stream, 1)
    client.xadd(stream, {"data": json.dumps({"name": "x" * 5_000})})

    async def scenario() -> list[dict]:
        async with triggerer() as running:
            running.watch(MessageTrigger(stream=stream, group="watcher", fields=["name", "absent"]))
            await until(lambda: is_drained(client, stream))
            return running.stored

    (event,) = asyncio.run(scenario())

    assert event["fields"] == {"name": "n0"}
    assert client.xlen(dead_letter_stream(stream)) == 1


def test_with_batch_events_one_event_is_for_many_messages(client: redis.Redis, stream: str):
    ids = add(client, stream, 250)

    async def scenario() -> list[dict]:
        async with triggerer() as running:
            fields = ["name"]
            running.watch(MessageTrigger(stream=stream, group="watcher", fields=fields, batch_events=100))
            await until(lambda: is_drained(client, stream))
            return running.stored

    events = asyncio.run(scenario())

    assert [entry_id for event in events for entry_id in event["ids"]] == ids
    assert len(events) < 10
    assert events[0]["fields"][0] == {"name": "n0"}


def test_a_message_that_is_refused_is_no_obstacle_to_the_others_of_its_event(
    client: redis.Redis, stream: str
):
    ids = add(client, stream, 3)
    client.xadd(stream, {"data": json.dumps({"no": "number"})})

    async def scenario() -> list[dict]:
        async with triggerer() as running:
            match = f"{__name__}:is_even"
            running.watch(MessageTrigger(stream=stream, group="watcher", match=match, batch_events=10))
            await until(lambda: is_drained(client, stream))
            return running.stored

    events = asyncio.run(scenario())

    assert [entry_id for event in events for entry_id in event["ids"]] == [ids[0], ids[2]]
    assert client.xlen(dead_letter_stream(stream)) == 1


def test_what_is_in_flight_stays_far_below_the_subscriber_queue(client: redis.Redis, stream: str):
    add(client, stream, BURST)

    async def scenario() -> list[str]:
        async with triggerer() as running:
            running.stores = False
            running.watch(MessageTrigger(stream=stream, group="watcher"))
            await until(lambda: len(running.seen) == 256)
            assert pending(client, stream) == 256

            running.stores = True
            running.store_the_rest()
            await until(lambda: is_drained(client, stream))
            return [event["id"] for event in running.stored]

    told = asyncio.run(scenario())

    assert len(told) == len(set(told)) == BURST


def test_large_messages_in_flight_are_bounded_by_their_bytes(client: redis.Redis, stream: str):
    ids = StreamWriter(client, stream).enqueue_many([{"text": "x" * (4 << 20)}] * 25, batch_size=5)

    async def scenario() -> list[str]:
        async with triggerer() as running:
            running.stores = False
            running.watch(MessageTrigger(stream=stream, group="watcher"))
            await until(lambda: len(running.seen) == 8)
            assert pending(client, stream) == 8

            running.stores = True
            running.store_the_rest()
            await until(lambda: is_drained(client, stream))
            return [event["id"] for event in running.stored]

    assert asyncio.run(scenario()) == ids
    client.delete(stream)


def test_two_watchers_of_one_stream_are_both_told_of_every_message(client: redis.Redis, stream: str):
    ids = add(client, stream, BURST)
    watchers = [MessageTrigger(stream=stream), MessageTrigger(stream=stream, fields=["number"])]

    async def scenario() -> list[dict]:
        async with triggerer() as running:
            for watcher in watchers:
                running.watch(watcher)
            for watcher in watchers:
                await until(partial(is_drained, client, stream, watcher.group))
            return running.stored

    told = asyncio.run(scenario())

    for watcher in watchers:
        assert sorted(event["id"] for event in told if event["group"] == watcher.group) == sorted(ids)


def test_two_triggerers_that_run_the_same_watcher_at_once_lose_nothing(client: redis.Redis, stream: str):
    ids = add(client, stream, 600)

    async def scenario() -> list[dict]:
        async with triggerer() as first, triggerer() as second:
            for running in (first, second):
                running.watch(MessageTrigger(stream=stream, group="watcher", reread_s=0.1))
            await until(lambda: is_drained(client, stream))
            return first.stored + second.stored

    told = asyncio.run(scenario())

    assert {event["id"] for event in told} == set(ids)


def test_a_watcher_stands_back_from_a_group_that_another_one_reads(
    client: redis.Redis, stream: str, caplog: pytest.LogCaptureFixture
):
    ids = add(client, stream, 3)

    async def scenario() -> list[dict]:
        async with triggerer() as running:
            running.watch(MessageTrigger(stream=stream, group="watcher"))
            await until(lambda: is_drained(client, stream))
            running.watch(MessageTrigger(stream=stream, group="watcher", fields=["number"]))
            await until(lambda: "give this watcher a group of its own" in caplog.text)
            ids.extend(add(client, stream, 3))
            await until(lambda: is_drained(client, stream))
            return running.stored

    told = asyncio.run(scenario())

    assert [event["id"] for event in told] == ids
    assert all("fields" not in event for event in told)


def test_what_a_watcher_with_other_arguments_left_pending_is_taken_over(
    client: redis.Redis, stream: str, server_url: str, monkeypatch: pytest.MonkeyPatch
):
    ids = add(client, stream, 2)
    with RedisStreamsQueue.from_url(server_url, QueueConfig(stream, "watcher", "of-old")) as queue:
        queue.read(1_000, 2)
    client.xclaim(stream, "watcher", "of-old", 0, [*ids], idle=120_000, justid=True)
    monkeypatch.setattr(watched_stream, "_DEAD_AFTER_MS", 0)

    async def scenario() -> list[str]:
        async with triggerer() as running:
            running.watch(MessageTrigger(stream=stream, group="watcher"))
            await until(lambda: is_drained(client, stream))
            return [event["id"] for event in running.stored]

    assert asyncio.run(scenario()) == ids


def test_an_event_that_is_stored_while_redis_is_unavailable_is_acked_when_it_is_back(
    tmp_path, stream: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    server = EmbeddedServer(dir=tmp_path, appendonly=True, appendfsync="always")
    server.start()
    monkeypatch.setenv("AIRFLOW_CONN_REDIS_STREAMS_DEFAULT", connection_to(server.url))
    client = redis.Redis.from_url(server.url)

    async def scenario() -> list[str]:
        async with triggerer() as running:
            running.stores = False
            running.watch(MessageTrigger(stream=stream, group="watcher"))
            await until(lambda: len(running.seen) == 3)
            await asyncio.to_thread(server.kill)
            running.store_the_rest()
            await until(lambda: "will be settled later" in caplog.text)
            await asyncio.to_thread(server.start)
            running.stores = True
            await until(lambda: is_drained(client, stream))
            return [event["id"] for event in running.stored]

    try:
        ids = add(client, stream, 3)
        told = asyncio.run(scenario())
    finally:
        client.close()
        server.stop()

    assert told == ids


def test_a_new_group_begins_at_the_end_if_asked_to(client: redis.Redis, stream: str):
    add(client, stream, 3)

    async def scenario() -> None:
        async with triggerer() as running:
            running.watch(MessageTrigger(stream=stream, group="watcher", start="end"))
            await until(lambda: client.xinfo_groups(stream))
            (new,) = add(client, stream, 1)
            await until(lambda: running.stored)
            assert [event["id"] for event in running.stored] == [new]

    asyncio.run(scenario())


@pytest.mark.parametrize("start", ["beginning", "end"])
def test_a_watcher_begins_on_a_full_server(stream: str, monkeypatch: pytest.MonkeyPatch, start: Any):
    with server_of_its_own("valkey") as client:
        host, port = (client.connection_pool.connection_kwargs[name] for name in ("host", "port"))
        monkeypatch.setenv("AIRFLOW_CONN_REDIS_STREAMS_DEFAULT", connection_to(f"redis://{host}:{port}/0"))
        sent = fill(client, lambda _, text: StreamWriter(client, stream).enqueue({"text": text}))

        async def scenario() -> int:
            async with triggerer() as running:
                running.watch(MessageTrigger(stream=stream, group="watcher", start=start))
                await until(lambda: client.xinfo_groups(stream))
                await until(lambda: is_drained(client, stream))
                return len(running.stored)

        assert asyncio.run(scenario()) == (sent if start == "beginning" else 0)


def test_its_group_is_its_own_and_the_same_wherever_it_runs(stream: str):
    plain = MessageTrigger(stream=stream)
    filtered = MessageTrigger(stream=stream, match="some.module:function")
    again = MessageTrigger(**json.loads(json.dumps(plain.serialize()[1])))

    assert plain.group != filtered.group
    assert (again.group, again.consumer, again.shared_stream_key()) == (
        plain.group,
        plain.consumer,
        plain.shared_stream_key(),
    )


def test_before_airflow_3_3_it_is_the_doorbell_and_consumes_nothing(
    client: redis.Redis, stream: str, server_url: str
):
    add(client, stream, 2)
    program = f"""
import asyncio, json, sys
sys.modules["airflow.triggers.shared_stream"] = None  # as it is there before 3.3
from airflow_provider_conquiet.triggers.message import MessageTrigger

async def main():
    trigger = MessageTrigger(stream={stream!r}, group="watcher")
    assert trigger.shared_stream_key() is None
    print(json.dumps((await anext(trigger.run())).payload))
    await trigger.cleanup()

asyncio.run(main())
"""

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=HANG_S
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["lag"] == 2
    assert client.xinfo_groups(stream) == []
