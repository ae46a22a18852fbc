"""The doorbell: when it rings, when it rings again, and that it only looks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import pytest
import redis
from airflow.sdk import Asset, AssetWatcher

from airflow_provider_conquiet.triggers.backlog import BacklogTrigger
from airflow_provider_conquiet.triggers.match import MatchTrigger
from conquiet import EmbeddedServer, RedisStreamsQueue
from conquiet.mq import Producer, Topics
from tests.eventually import HANG_S, eventually
from tests.with_airflow.standalone import connection_to

pytestmark = pytest.mark.usefixtures("connection")


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch, server_url: str) -> None:
    """The server as Airflow's default connection."""
    monkeypatch.setenv("AIRFLOW_CONN_REDIS_STREAMS_DEFAULT", connection_to(server_url))


def rings(trigger: BacklogTrigger, count: int) -> list[dict]:
    """The first events of the trigger."""

    async def collect() -> list[dict]:
        running: Any = trigger.run()
        async with aclosing(running) as events:
            return [(await anext(events)).payload for _ in range(count)]

    return asyncio.run(asyncio.wait_for(collect(), HANG_S))


def match_trigger(stream: str, **arguments: Any) -> MatchTrigger:
    """What a deferred `MessageSensor` waits with."""
    names: dict[str, Any] = {"is_topic": False, "redis_streams_conn_id": "redis_streams_default"}
    return MatchTrigger(after={stream: "0-0"}, equals={"number": 1}, **names | arguments)


def backlog_trigger(stream: str, **arguments: Any) -> BacklogTrigger:
    """A doorbell of the stream."""
    return BacklogTrigger(stream=stream, group="billing", **arguments)


both_triggers = pytest.mark.parametrize("make", [backlog_trigger, match_trigger])


class Ringing:
    """A trigger that runs beside the test, as in a triggerer."""

    def __init__(self, trigger: BacklogTrigger | MatchTrigger) -> None:
        self._trigger = trigger
        self.events: list[dict] = []

    async def run(self) -> None:
        async for event in self._trigger.run():
            self.events.append(event.payload)


@asynccontextmanager
async def running(trigger: BacklogTrigger | MatchTrigger) -> AsyncIterator[Ringing]:
    """The trigger, until the end of the block."""
    ringing = Ringing(trigger)
    task = asyncio.create_task(ringing.run())
    yield ringing
    task.cancel()
    await asyncio.wait([task])


async def looks(client: redis.Redis, count: int) -> None:
    """Wait until the trigger has looked so often again: with one XINFO, or where there is something, four."""

    def asked() -> int:
        found = client.info("commandstats").items()
        return sum(stats["calls"] for name, stats in found if name.startswith("cmdstat_xinfo"))

    before = asked()
    await until(lambda: asked() >= before + 4 * count)


async def until(check: Callable[[], object]) -> None:
    """`eventually`, for a loop that must go on meanwhile."""
    await asyncio.to_thread(eventually, check)


async def events_of_some_looks(client: redis.Redis, trigger: BacklogTrigger) -> list[dict]:
    """What the trigger told after it has looked a few times."""
    async with running(trigger) as ringing:
        await looks(client, 5)
        return ringing.events


def test_it_rings_with_names_and_counts_and_never_a_payload(queue: RedisStreamsQueue, stream: str):
    queue.enqueue_many({"secret": f"hidden-{n}"} for n in range(3))

    (event,) = rings(BacklogTrigger(stream=stream, group="billing", ring_again_s=None), 1)

    assert (event["stream"], event["group"], event["lag"], event["pending"]) == (stream, "billing", 3, 0)
    assert isinstance(event["oldest_age_ms"], int)
    assert "hidden" not in json.dumps(event)


def test_it_looks_and_makes_neither_stream_nor_group_nor_consumer(client: redis.Redis, stream: str):
    async def scenario() -> None:
        async with running(BacklogTrigger(stream=stream, group="billing", poll_interval_s=0.01)) as ringing:
            await looks(client, 3)
            assert not client.exists(stream)
            client.xadd(stream, {"data": "{}"})
            await until(lambda: ringing.events)

    asyncio.run(scenario())

    assert client.xinfo_groups(stream) == []
    assert client.xlen(stream) == 1


def test_many_triggers_of_one_connection_share_a_few_connections(client: redis.Redis, stream: str):
    # Those of earlier tests may end meanwhile.
    before = {connection["id"] for connection in client.client_list()}

    def connections() -> int:
        return len({connection["id"] for connection in client.client_list()} - before)

    async def scenario() -> int:
        async with AsyncExitStack() as stack:
            for number in range(40):
                trigger = BacklogTrigger(stream=f"{stream}:{number}", group="billing", poll_interval_s=0.01)
                await stack.enter_async_context(running(trigger))
            await looks(client, 100)
            return connections()

    most = asyncio.run(scenario())

    assert 0 < most <= 4
    eventually(lambda: connections() == 0)


def test_it_rings_for_what_a_consumer_that_is_gone_has_pending(
    queue: RedisStreamsQueue, client: redis.Redis, stream: str
):
    queue.enqueue({"n": 1})
    queue.read(1_000)
    settings: dict[str, Any] = {"stream": stream, "group": "billing", "poll_interval_s": 0.01}
    settings |= {"ring_again_s": None}

    of_another_time = asyncio.run(events_of_some_looks(client, BacklogTrigger(**settings, min_idle_s=3_600)))
    (event,) = rings(BacklogTrigger(**settings, min_idle_s=0.2), 1)

    assert of_another_time == []
    assert (event["lag"], event["pending"]) == (0, 1)


def test_it_rings_again_while_the_backlog_stays(queue: RedisStreamsQueue, stream: str):
    queue.enqueue({"n": 1})

    events = rings(BacklogTrigger(stream=stream, group="billing", poll_interval_s=0.01, ring_again_s=0.05), 3)

    assert [event["lag"] for event in events] == [1, 1, 1]


def test_it_is_quiet_after_a_ring_and_rings_at_once_when_a_new_backlog_begins(
    queue: RedisStreamsQueue, client: redis.Redis, stream: str
):
    trigger = BacklogTrigger(stream=stream, group="billing", poll_interval_s=0.01, ring_again_s=3_600)

    async def scenario() -> None:
        async with running(trigger) as ringing:
            queue.enqueue({"n": 1})
            await until(lambda: ringing.events)
            await looks(client, 5)
            assert len(ringing.events) == 1

            queue.ack(queue.read(1_000)[0])
            await looks(client, 2)
            queue.enqueue({"n": 2})
            await until(lambda: len(ringing.events) == 2)
            await looks(client, 5)
            assert len(ringing.events) == 2

    asyncio.run(scenario())


def test_pending_messages_ring_only_where_they_are_asked_for(
    queue: RedisStreamsQueue, client: redis.Redis, stream: str
):
    queue.enqueue({"n": 1})
    queue.read(1_000)
    settings: dict[str, Any] = {
        "stream": stream,
        "group": "billing",
        "poll_interval_s": 0.01,
        "ring_again_s": None,
    }

    (event,) = rings(BacklogTrigger(**settings, min_pending=1), 1)
    unasked = asyncio.run(events_of_some_looks(client, BacklogTrigger(**settings)))

    assert unasked == []
    assert (event["lag"], event["pending"]) == (0, 1)
    assert event["oldest_age_ms"] is not None


def test_an_old_message_rings_where_a_young_one_does_not(
    queue: RedisStreamsQueue, client: redis.Redis, stream: str
):
    trigger = BacklogTrigger(
        stream=stream, group="billing", min_lag=None, min_age_s=3_600, poll_interval_s=0.01, ring_again_s=None
    )
    client.xadd(stream, {"data": "{}"}, id="1700000000000-0")
    (event,) = rings(trigger, 1)
    client.delete(stream)
    client.xadd(stream, {"data": "{}"})
    of_the_young_one = asyncio.run(events_of_some_looks(client, trigger))

    assert of_the_young_one == []
    assert event["oldest_age_ms"] > 3_600_000


def test_the_partitions_of_a_topic_are_added_up(client: redis.Redis, stream: str):
    name = stream.replace(":", "-")
    Topics(client).create(name, partitions=3)
    Producer(client).send_many(name, [{"n": n} for n in range(7)])

    (event,) = rings(BacklogTrigger(topic=name, group="billing", min_lag=7, ring_again_s=None), 1)

    assert (event["topic"], event["lag"]) == (name, 7)


def test_a_lag_that_the_server_does_not_know_rings_too(
    queue: RedisStreamsQueue, client: redis.Redis, stream: str
):
    ids = queue.enqueue_many({"n": n} for n in range(2_000))
    queue.ack(queue.read(1_000)[0])
    client.xdel(stream, ids[5])

    (event,) = rings(BacklogTrigger(stream=stream, group="billing", ring_again_s=None), 1)

    assert event["lag"] is None


@both_triggers
def test_it_goes_on_when_redis_was_unavailable_and_logs_it(
    tmp_path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stream: str, make
):
    server = EmbeddedServer(dir=tmp_path, appendonly=True)
    server.start()
    monkeypatch.setenv("AIRFLOW_CONN_REDIS_STREAMS_DEFAULT", connection_to(server.url))

    async def scenario() -> list[dict]:
        async with running(make(stream, poll_interval_s=0.01)) as ringing:
            await asyncio.to_thread(server.kill)
            await until(lambda: "trying again" in caplog.text)
            await asyncio.to_thread(server.start)
            with redis.Redis.from_url(server.url) as client:
                client.xadd(stream, {"data": '{"number": 1}'})
            await until(lambda: ringing.events)
            return ringing.events

    try:
        events = asyncio.run(scenario())
    finally:
        server.stop()

    assert [event["stream"] for event in events] == [stream]


@pytest.mark.parametrize("before", [None, '{"conn_type": "redis_streams"}'], ids=["missing", "wrong"])
def test_a_watcher_without_its_connection_waits_for_it_and_says_so(
    client: redis.Redis,
    stream: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    before: str | None,
    server_url: str,
):
    if before is not None:
        monkeypatch.setenv("AIRFLOW_CONN_LATER", before)

    async def scenario() -> list[dict]:
        trigger = BacklogTrigger(stream=stream, group="billing", redis_streams_conn_id="later")
        async with running(trigger) as ringing:
            await until(lambda: "nothing is watched" in caplog.text)
            monkeypatch.setenv("AIRFLOW_CONN_LATER", connection_to(server_url))
            client.xadd(stream, {"data": "{}"})
            await until(lambda: ringing.events)
            return ringing.events

    assert [event["lag"] for event in asyncio.run(scenario())] == [1]


@both_triggers
def test_a_trigger_that_is_cancelled_at_any_moment_ends(client: redis.Redis, stream: str, make):
    async def cancel_after(steps: int) -> bool:
        task = asyncio.create_task(Ringing(make(stream, poll_interval_s=0.0001)).run())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=HANG_S)
        return bool(done)

    async def scenario() -> list[int]:
        return [steps for steps in range(0, 400, 2) if not await cancel_after(steps)]

    assert asyncio.run(scenario()) == []


def test_its_client_is_closed_when_it_ends_or_is_cancelled(client: redis.Redis, stream: str):
    connections = lambda: int(client.info("clients")["connected_clients"])  # noqa: E731
    before = connections()
    client.xadd(stream, {"data": "{}"})

    async def cancel_after_a_ring() -> None:
        trigger = BacklogTrigger(stream=stream, group="billing")
        await anext(trigger.run())
        await trigger.cleanup()

    rings(BacklogTrigger(stream=stream, group="billing", ring_again_s=None), 1)
    asyncio.run(cancel_after_a_ring())

    eventually(lambda: connections() <= before)


def test_it_is_made_again_from_what_it_serializes_to():
    trigger = BacklogTrigger(topic="orders", group="billing", min_lag=None, min_pending=5, ring_again_s=None)

    path, arguments = trigger.serialize()
    again = BacklogTrigger(**json.loads(json.dumps(arguments)))

    assert path == "airflow_provider_conquiet.triggers.backlog.BacklogTrigger"
    assert again.serialize() == trigger.serialize()


def test_an_asset_watcher_takes_it(stream: str):
    trigger = BacklogTrigger(stream=stream, group="billing")

    asset = Asset("orders", watchers=[AssetWatcher(name="doorbell", trigger=trigger)])

    assert asset.watchers[0].trigger is trigger


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"group": "g"}, "either a stream or a topic"),
        ({"stream": "s", "topic": "t", "group": "g"}, "either a stream or a topic"),
        ({"stream": "s", "group": "g", "min_lag": None}, "at least one of"),
        ({"stream": "s", "group": "g", "min_lag": 0}, "min_lag must be a positive number"),
        ({"stream": "s", "group": "g", "poll_interval_s": 0}, "intervals must be above 0"),
    ],
)
def test_arguments_that_mean_nothing_are_refused_with_a_sentence(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        BacklogTrigger(**arguments)
