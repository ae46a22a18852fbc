"""A primary that is demoted and lives on: connections that stay open to it keep nobody from the new one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import pytest
import redis
from sqlalchemy import Engine

from conquiet import (
    AsyncQueue,
    DrainLimits,
    EmbeddedServer,
    QueueConfig,
    QueueError,
    RedisStreamsQueue,
    drain,
)
from conquiet.mq import Message, PartitionConsumer, Producer, Topics
from conquiet.queue import StreamWriter, open_async_client, open_client
from tests.eventually import eventually
from tests.link import Link
from tests.services import REDIS_KINDS, redis_binary, unavailable
from tests.with_redis.mq.consuming import quick

STREAM, TOPIC = "payments", "orders"


@dataclass(frozen=True)
class Service:
    """An address that leads new connections to whichever server is primary."""

    primary: EmbeddedServer
    replica: EmbeddedServer
    link: Link

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.link.port}/0"

    def fail_over(self) -> None:
        with redis.Redis.from_url(self.primary.url) as old, redis.Redis.from_url(self.replica.url) as new:
            # WAIT is about the writes of its own connection.
            old.set("caught-up", "yes")
            assert old.execute_command("WAIT", 1, 60_000) == 1
            new.execute_command("REPLICAOF", "NO", "ONE")
            self.link.turn(self.replica.port)
            old.execute_command("REPLICAOF", "127.0.0.1", self.replica.port)


@pytest.fixture(params=REDIS_KINDS)
def service(request) -> Iterator[Service]:
    binary = redis_binary(request.param)
    if binary is None:
        unavailable("redis", f"no binary of {request.param}")
    with ExitStack() as stack:
        # By default a primary waits for more replicas to come.
        at_once = ["--repl-diskless-sync-delay", "0"]
        primary = stack.enter_context(EmbeddedServer(binary=binary, args=at_once))
        following = ["--replicaof", "127.0.0.1", str(primary.port)]
        replica = stack.enter_context(EmbeddedServer(binary=binary, args=following))
        with redis.Redis.from_url(primary.url) as client:
            eventually(lambda: client.info("replication").get("slave0", {}).get("state") == "online")
        yield Service(primary, replica, stack.enter_context(Link("127.0.0.1", primary.port)))


def test_who_sends_gets_one_error_at_most_and_then_finds_the_new_primary(service: Service):
    async def send_all(opened) -> list[str | QueueError]:
        queue = AsyncQueue(opened, STREAM)
        results: list[str | QueueError] = []
        for send in (queue.enqueue, lambda payload: queue.enqueue_many([payload])):
            for _ in range(2):
                try:
                    results.append(str(await send({"n": 1})))
                except QueueError as error:
                    results.append(error)
        return results

    with asyncio.Runner() as runner, ExitStack() as stack:

        def opened() -> redis.Redis:
            return stack.enter_context(open_client(service.url))

        awaited = runner.run(_open_async(service.url))
        Topics(opened()).create(TOPIC)
        writers = [StreamWriter(opened(), STREAM) for _ in range(3)]
        producers = [Producer(opened()) for _ in range(3)]
        once = Message(payload={"n": 1}, key="a", dedupe_id="b")
        sends: dict[str, Callable[[], object]] = {
            "enqueue": lambda: writers[0].enqueue({"n": 1}),
            "enqueue_many": lambda: writers[1].enqueue_many([{"n": 1}]),
            "enqueue_once": lambda: writers[2].enqueue_once([{"n": 1}], dedupe_id="once"),
            "send": lambda: producers[0].send(TOPIC, {"n": 1}),
            "send_many": lambda: producers[1].send_many(TOPIC, [{"n": 1}]),
            "send_many once": lambda: producers[2].send_many(TOPIC, [once]),
        }
        for send in sends.values():
            send()
        assert all(isinstance(result, str) for result in runner.run(send_all(awaited)))
        service.fail_over()

        for name, send in sends.items():
            # Who checks the stream's end before it sends has found it out by that.
            with suppress(QueueError):
                send()
            assert send(), name
        results = runner.run(send_all(awaited))
        runner.run(awaited.aclose())

    assert all(isinstance(result, str) for result in results[1:]), results


async def _open_async(url: str):
    return open_async_client(url)


def test_a_queue_gets_one_error_and_then_finds_the_new_primary(service: Service, engine: Engine):
    with RedisStreamsQueue.from_url(
        service.url, QueueConfig(STREAM, "billing", "worker-1", block_ms=20)
    ) as queue:
        queue.enqueue_many([{"n": n} for n in range(3)])
        (msg,) = queue.read(block_ms=20)
        service.fail_over()

        with pytest.raises(QueueError, match="read only replica"):
            queue.ack_and_read([msg.id], block_ms=20)
        queue.ack(msg)
        handled: list[int] = []
        report = drain(
            queue, lambda msg, _session: handled.append(msg.payload["n"]), engine, DrainLimits(idle_ms=20)
        )

    assert (handled, report.handled) == ([1, 2], 2)


def test_a_consumer_goes_on_with_the_new_primary(service: Service):
    with open_client(service.url) as client, redis.Redis.from_url(service.replica.url) as new:
        topic = Topics(client).create(TOPIC, 2)
        Producer(client).send_many(TOPIC, [{"n": n} for n in range(10)])
        handled: set[int] = set()
        with PartitionConsumer(topic, "billing", lambda msg: handled.add(msg.payload["n"]), config=quick()):
            eventually(lambda: handled == set(range(10)))
            service.fail_over()
            Producer(new).send_many(TOPIC, [{"n": n} for n in range(10, 20)])

            eventually(lambda: handled == set(range(20)), progress=lambda: len(handled))
