"""Writing a million rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.measurement import Comparison, Measurement
from benchmarks.spark.session import ROWS
from benchmarks.spark.work import SparkWork, empty_targets, save

_PIPELINE = 1_000


def rows_in_pipelines(work: SparkWork) -> None:
    """What everybody writes first: `foreachPartition`, redis-py, a pipeline of 1,000."""
    work.orders.select("data").foreachPartition(_pipelines_to(work.url, work.stream))


def messages_in_pipelines(work: SparkWork) -> None:
    """As `rows_in_pipelines`, with the envelopes of a topic, by the producer itself."""
    work.orders.foreachPartition(_producer_to(work.url, work.topic))


def raw_commands(work: SparkWork) -> None:
    """One process, no Spark: commands packed by hand, 1,000 to a round trip, replies only counted."""
    head = b"*5\r\n$4\r\nXADD\r\n$%d\r\n%s\r\n$1\r\n*\r\n$4\r\ndata\r\n"
    stream = work.stream.encode()
    payload = b'{"number":123456,"customer":"customer-000123","pad":"' + b"x" * 155 + b'"}'
    one = head % (len(stream), stream) + b"$%d\r\n%s\r\n" % (len(payload), payload)
    connection: Any = work.client.connection_pool.get_connection()
    try:
        for _ in range(0, work.rows, _PIPELINE):
            connection.send_packed_command([one * _PIPELINE])
            lines = 0
            while lines < 2 * _PIPELINE:
                lines += connection._sock.recv(1 << 20).count(b"\r\n")
    finally:
        connection.disconnect()
        work.client.connection_pool.release(connection)


def write_to_stream(work: SparkWork) -> None:
    save(work.orders.select("data"), work, stream=work.stream)


def write_to_topic(work: SparkWork) -> None:
    save(work.orders, work, topic=work.topic)


def write_without_dedupe(work: SparkWork) -> None:
    save(work.orders.select("data"), work, stream=work.stream, dedupe="off")


def _pipelines_to(url: str, stream: str) -> Callable[[Iterable[Any]], None]:
    def send(rows: Iterable[Any]) -> None:
        import redis

        with redis.Redis.from_url(url) as client:
            pipeline = client.pipeline(transaction=False)
            for number, row in enumerate(rows, 1):
                pipeline.xadd(stream, {"data": row.data})
                if number % _PIPELINE == 0:
                    pipeline.execute()
            pipeline.execute()

    return send


def _producer_to(url: str, topic: str) -> Callable[[Iterable[Any]], None]:
    def send(rows: Iterable[Any]) -> None:
        import json

        from conquiet.mq import Message, Producer
        from conquiet.queue import open_client

        with open_client(url) as client:
            producer, waiting = Producer(client), []
            for row in rows:
                waiting.append(Message(payload=json.loads(row.data), key=row.key))
                if len(waiting) == _PIPELINE:
                    producer.send_many(topic, waiting)
                    waiting = []
            producer.send_many(topic, waiting)

    return send


MEASUREMENTS: list[Measurement] = [
    Comparison(
        name="write / foreachPartition with pipelines of 1,000",
        prepare=empty_targets,
        raw=rows_in_pipelines,
        ours=write_to_stream,
        messages=ROWS,
        bar=2.65,
        rounds=3,
    ),
    Comparison(
        name="write / raw pipelined XADD of one process",
        prepare=empty_targets,
        raw=raw_commands,
        ours=write_to_stream,
        messages=ROWS,
        rounds=3,
    ),
    Comparison(
        name="write without dedupe / foreachPartition with pipelines of 1,000",
        prepare=empty_targets,
        raw=rows_in_pipelines,
        ours=write_without_dedupe,
        messages=ROWS // 2,
        rounds=3,
    ),
    Comparison(
        name="write to a topic / foreachPartition with Producer.send_many",
        prepare=empty_targets,
        raw=messages_in_pipelines,
        ours=write_to_topic,
        messages=ROWS // 4,
        bar=2.0,
        rounds=3,
    ),
]
