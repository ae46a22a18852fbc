"""What Airflow's providers do when the process that watches is killed: conquiet, Redis, Kafka and SQS.

The same fault for each of them. Those for Kafka and SQS need an environment of its own:

    uv pip install --constraint .ci/airflow/3.3.txt -e '.[airflow,embedded]' apache-airflow-providers-amazon \
        apache-airflow-providers-apache-kafka 'moto[server]'
    python -m benchmarks.peers.airflow_providers

Kafka is the broker that librdkafka has for tests, SQS is that of moto: they keep messages and offsets as the
real ones do. Of conquiet and Redis tests/with_airflow/test_side_by_side.py asserts it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from conquiet import EmbeddedServer

#: Received and not processed: the watcher dies. The two behind it are sent while none runs.
FATAL = 3
#: Finds what hangs.
_HANG_S = 600.0
_REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Broker:
    """What the messages are sent to."""

    kind: str
    #: What its watcher watches.
    address: str
    send: Callable[[int], object]
    #: Whether a watcher has begun to listen so often; what is stored waits for its reader.
    is_listened_to: Callable[[int], bool] = field(default=lambda _times: True)
    #: By which Airflow finds it.
    environment: dict[str, str] = field(default_factory=dict)
    #: After which what was received and not deleted comes again.
    redelivery_s: float = 0.0


@contextmanager
def conquiet_stream(url: str, name: str) -> Iterator[Broker]:
    """A stream, watched by `MessageTrigger`."""
    with redis.Redis.from_url(url) as client:
        yield Broker(
            kind="conquiet",
            address=name,
            send=lambda number: client.xadd(name, {"data": json.dumps({"number": number})}),
            environment={"AIRFLOW_CONN_REDIS_STREAMS_DEFAULT": url},
        )


async def conquiet_events(stream: str) -> AsyncIterator[int]:
    """Over Airflow's ack channel, as in the triggerer: an event counts as stored when it is processed."""
    from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
    from airflow.triggers.base import BaseEventTrigger
    from airflow.triggers.shared_stream import SharedStreamManager

    asked = MessageQueueTrigger(scheme="redis+stream", stream=stream, fields=["number"])
    trigger: BaseEventTrigger = asked.trigger
    manager = SharedStreamManager()
    key: Any = trigger.shared_stream_key()
    events = trigger.filter_shared_stream(manager.subscribe(trigger_id=1, trigger=trigger, key=key))
    async for event in events:
        seq = manager.bind_pending_event(trigger_id=1, key=key)
        yield event.payload["fields"]["number"]
        if seq is not None:
            manager.confirm_persisted([seq])


@contextmanager
def redis_channel(url: str, name: str) -> Iterator[Broker]:
    """A channel, watched by Airflow's provider for Redis."""
    with redis.Redis.from_url(url) as client:

        def subscribed() -> int:
            stats: Any = client.info("commandstats")
            return int(stats.get("cmdstat_subscribe", {"calls": 0})["calls"])

        before = subscribed()
        yield Broker(
            kind="redis",
            address=name,
            send=lambda number: client.publish(name, number),
            # Its trigger subscribes anew after each event and never closes the old connection.
            is_listened_to=lambda times: subscribed() >= before + times,
            environment={"AIRFLOW_CONN_REDIS_DEFAULT": url},
        )


async def redis_events(channel: str) -> AsyncIterator[int]:
    """A trigger ends with each event, and Airflow starts it again."""
    from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger

    while True:
        trigger = MessageQueueTrigger(scheme="redis+pubsub", channels=channel, poll_interval=0.01)
        async for event in trigger.run():
            yield int(event.payload["data"])


@contextmanager
def kafka() -> Iterator[Broker]:
    """A topic of librdkafka's own broker."""
    from confluent_kafka import Producer

    producer: Any = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "unused", "log_level": 0})
    (broker,) = producer.list_topics(timeout=30).brokers.values()
    settings = {
        "bootstrap.servers": f"{broker.host}:{broker.port}",
        "group.id": "trial",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 6_000,
    }

    def send(number: int) -> None:
        producer.produce("trial", str(number).encode())
        producer.flush()

    fields = {"conn_type": "kafka", "extra": settings}
    environment = {"AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(fields)}
    yield Broker(kind="kafka", address="trial", send=send, environment=environment, redelivery_s=15)


async def kafka_events(topic: str) -> AsyncIterator[int]:
    """As `redis_events`."""
    from airflow.providers.apache.kafka.triggers.await_message import AwaitMessageTrigger

    while True:
        async for event in AwaitMessageTrigger(topics=[topic], poll_timeout=0.2).run():
            yield int(event.payload)


@contextmanager
def sqs() -> Iterator[Broker]:
    """A queue of moto's server."""
    import boto3

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    credentials = {"aws_access_key_id": "trial", "aws_secret_access_key": "trial", "region_name": "us-east-1"}
    server = subprocess.Popen([Path(sys.executable).with_name("moto_server"), "-p", str(port)])
    try:
        _wait_until(lambda: _listens(port))
        client = boto3.client("sqs", endpoint_url=url, **credentials)
        address = client.create_queue(QueueName="trial", Attributes={"VisibilityTimeout": "5"})["QueueUrl"]
        fields = {
            "conn_type": "aws",
            "login": "trial",
            "password": "trial",
            "extra": {"region_name": "us-east-1", "endpoint_url": url},
        }
        yield Broker(
            kind="sqs",
            address=address,
            send=lambda number: client.send_message(QueueUrl=address, MessageBody=str(number)),
            environment={"AIRFLOW_CONN_AWS_DEFAULT": json.dumps(fields)},
            redelivery_s=15,
        )
    finally:
        server.kill()
        server.wait()


async def sqs_events(address: str) -> AsyncIterator[int]:
    """As `redis_events`."""
    from airflow.providers.amazon.aws.triggers.sqs import SqsSensorTrigger

    while True:
        trigger = SqsSensorTrigger(sqs_queue=address, max_messages=1, wait_time_seconds=1, waiter_delay=1)
        async for event in trigger.run():
            for message in event.payload["message_batch"]:
                yield int(message["Body"])


EVENTS = {"conquiet": conquiet_events, "redis": redis_events, "kafka": kafka_events, "sqs": sqs_events}


async def watch(events: AsyncIterator[int], done: Path) -> None:
    """Process what comes, and die at the fatal one, once."""
    died = done.with_suffix(".died")
    async for number in events:
        if number == FATAL and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with done.open("a") as lines:
            lines.write(f"{number}\n")


def processed_of_six(broker: Broker, done: Path) -> list[int]:
    """Send six; the watcher dies between receipt and processing of the third, and starts again."""

    def processed() -> list[int]:
        return [int(line) for line in done.read_text().split()]

    def send_and_wait(number: int, *, listened: int) -> None:
        _wait_until(lambda: broker.is_listened_to(listened))
        broker.send(number)
        if number != FATAL:
            _wait_until(lambda: number in processed())

    done.touch()
    with _watcher(broker, done) as first:
        for number in range(1, FATAL + 1):
            send_and_wait(number, listened=number)
        assert first.wait(timeout=_HANG_S) == -signal.SIGKILL
    for number in (4, 5):
        broker.send(number)
    with _watcher(broker, done):
        send_and_wait(6, listened=4)
        time.sleep(broker.redelivery_s)
    return processed()


@contextmanager
def _watcher(broker: Broker, done: Path) -> Iterator[subprocess.Popen[bytes]]:
    program = [sys.executable, "-m", __spec__.name, broker.kind, broker.address, str(done)]
    process = subprocess.Popen(program, env=os.environ | broker.environment, cwd=_REPOSITORY)
    try:
        yield process
    finally:
        process.kill()
        process.wait(timeout=_HANG_S)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _wait_until(check: Callable[[], bool]) -> None:
    end = time.monotonic() + _HANG_S
    while not check():
        assert time.monotonic() < end, "the watcher hangs"
        time.sleep(0.02)


def main(arguments: list[str]) -> None:
    """Run the trial, or with arguments be one of its watchers."""
    if arguments:
        kind, address, done = arguments
        asyncio.run(watch(EVENTS[kind](address), Path(done)))
        return
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer() as server:
        os.environ["AIRFLOW_HOME"] = folder
        brokers: list[AbstractContextManager[Broker]] = [
            conquiet_stream(server.url, "trial"),
            redis_channel(server.url, "channel"),
            kafka(),
            sqs(),
        ]
        for opened in brokers:
            with opened as broker:
                processed = processed_of_six(broker, Path(folder) / broker.kind)
            lost = sorted(set(range(1, 7)) - set(processed))
            print(f"{broker.kind}: processed {processed}, lost {lost}")


if __name__ == "__main__":
    main(sys.argv[1:])
