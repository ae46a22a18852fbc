"""What Airflow's providers for Kafka and SQS do when the process that watches is killed.

The same fault as in tests/with_airflow/test_pubsub_side_by_side.py, which has it for Redis. It needs an
environment of its own, with Airflow and the two providers:

    uv pip install --constraint .ci/airflow/3.3.txt -e '.[airflow,embedded]' apache-airflow-providers-amazon \
        apache-airflow-providers-apache-kafka 'moto[server]'
    python -m benchmarks.peers.airflow_providers

Kafka is the broker that librdkafka has for tests, SQS is that of moto: they keep messages and offsets as the
real ones do.
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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: Received and not processed: the watcher dies. The two behind it are sent while none runs.
FATAL = 3
_PATIENCE_S = 120.0

Send = Callable[[int], object]


async def kafka_events(_address: str) -> AsyncIterator[int]:
    """A trigger ends with each event, and Airflow starts it again."""
    from airflow.providers.apache.kafka.triggers.await_message import AwaitMessageTrigger

    while True:
        async for event in AwaitMessageTrigger(topics=["trial"], poll_timeout=0.2).run():
            yield int(event.payload)


async def sqs_events(address: str) -> AsyncIterator[int]:
    """As `kafka_events`."""
    from airflow.providers.amazon.aws.triggers.sqs import SqsSensorTrigger

    while True:
        trigger = SqsSensorTrigger(sqs_queue=address, max_messages=1, wait_time_seconds=1, waiter_delay=1)
        async for event in trigger.run():
            for message in event.payload["message_batch"]:
                yield int(message["Body"])


async def watch(events: AsyncIterator[int], done: Path) -> None:
    """Process what comes, and die at the fatal one, once."""
    died = done.with_suffix(".died")
    async for number in events:
        if number == FATAL and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with done.open("a") as lines:
            lines.write(f"{number}\n")


@contextmanager
def kafka() -> Iterator[tuple[str, dict[str, str], Send]]:
    """A broker, the environment in which Airflow finds it, and what sends to it."""
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
    yield "", {"AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(fields)}, send


@contextmanager
def sqs() -> Iterator[tuple[str, dict[str, str], Send]]:
    """As `kafka`."""
    import boto3

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    credentials = {"aws_access_key_id": "trial", "aws_secret_access_key": "trial", "region_name": "us-east-1"}
    server = subprocess.Popen([Path(sys.executable).with_name("moto_server"), "-p", str(port)])
    try:
        client = boto3.client("sqs", endpoint_url=url, **credentials)
        address = client.create_queue(QueueName="trial", Attributes={"VisibilityTimeout": "5"})["QueueUrl"]
        fields = {
            "conn_type": "aws",
            "login": "trial",
            "password": "trial",
            "extra": {"region_name": "us-east-1", "endpoint_url": url},
        }
        environment = {"AIRFLOW_CONN_AWS_DEFAULT": json.dumps(fields)}
        yield (
            address,
            environment,
            lambda number: client.send_message(QueueUrl=address, MessageBody=str(number)),
        )
    finally:
        server.kill()
        server.wait()


def processed_of_six(kind: str, address: str, environment: dict[str, str], send: Send) -> list[int]:
    """Send six; the watcher dies between receipt and processing of the third, and starts again."""
    with tempfile.TemporaryDirectory() as folder:
        done = Path(folder) / "done"
        done.touch()
        program = [sys.executable, "-m", __spec__.name, kind, address, str(done)]

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                program, env=os.environ | environment | {"AIRFLOW_HOME": folder}, stderr=subprocess.DEVNULL
            )

        first = start()
        try:
            for number in range(1, FATAL + 1):
                send(number)
            first.wait(timeout=_PATIENCE_S)
        finally:
            first.kill()
        for number in (4, 5):
            send(number)
        second = start()
        try:
            send(6)
            end = time.monotonic() + _PATIENCE_S
            while "6\n" not in done.read_text() and time.monotonic() < end:
                time.sleep(0.5)
            # What is redelivered after a time, as SQS does, comes later.
            time.sleep(15)
        finally:
            second.kill()
            second.wait()
        return [int(line) for line in done.read_text().split()]


def main(arguments: list[str]) -> None:
    """Run the trial, or with arguments be one of its watchers."""
    if arguments:
        kind, address, done = arguments
        events = kafka_events(address) if kind == "kafka" else sqs_events(address)
        asyncio.run(watch(events, Path(done)))
        return
    for kind, broker in (("kafka", kafka), ("sqs", sqs)):
        with broker() as (address, environment, send):
            processed = processed_of_six(kind, address, environment, send)
        lost = sorted(set(range(1, 7)) - set(processed))
        print(f"{kind}: processed {processed}, lost {lost}")


if __name__ == "__main__":
    main(sys.argv[1:])
