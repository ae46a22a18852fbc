"""One partition's worker next to the raw loops over the same stream."""

from __future__ import annotations

import json

from benchmarks.databases import INSERT_ORDER
from benchmarks.measurement import Comparison, Measurement
from benchmarks.mq.topics import TopicWork, filled_topic, orders_to_insert, work_through
from benchmarks.workload import CONSUMER, GROUP
from conquiet import DbSession
from conquiet.mq import MqMessage

_BATCH = 100


def raw_batches(work: TopicWork) -> None:
    """Read 100, decode each, one ack for all of them."""
    client, stream = work.client, work.stream
    for _ in range(0, work.messages, _BATCH):
        [[_, entries]] = client.xreadgroup(GROUP, CONSUMER, {stream: ">"}, count=_BATCH)
        for _, fields in entries:
            json.loads(fields[b"data"])
        client.xack(stream, GROUP, *(entry_id for entry_id, _ in entries))


def raw_batches_with_commits(work: TopicWork) -> None:
    """Read 100, a transaction for each, one ack for all of them."""
    client, stream = work.client, work.stream
    with work.raw_engine.connect() as connection:
        for _ in range(0, work.messages, _BATCH):
            [[_, entries]] = client.xreadgroup(GROUP, CONSUMER, {stream: ">"}, count=_BATCH)
            for entry_id, fields in entries:
                order = json.loads(fields[b"data"])["payload"]
                with connection.begin():
                    connection.execute(
                        INSERT_ORDER, {"entry_id": entry_id.decode(), "number": order["number"]}
                    )
            client.xack(stream, GROUP, *(entry_id for entry_id, _ in entries))


def raw_one_by_one_with_commits(work: TopicWork) -> None:
    """Read one, a transaction, ack: the raw commit loop."""
    client, stream = work.client, work.stream
    with work.raw_engine.connect() as connection:
        for _ in range(work.messages):
            [[_, [(entry_id, fields)]]] = client.xreadgroup(GROUP, CONSUMER, {stream: ">"}, count=1)
            order = json.loads(fields[b"data"])["payload"]
            with connection.begin():
                connection.execute(INSERT_ORDER, {"entry_id": entry_id.decode(), "number": order["number"]})
            client.xack(stream, GROUP, entry_id)


def work_doing_nothing(work: TopicWork) -> None:
    work_through(work, lambda _msg: None, work.messages)


def work_with_commits(work: TopicWork) -> None:
    work_through(work, insert_order, work.messages, engine=work.engine)


def insert_order(msg: MqMessage, session: DbSession) -> None:
    session.execute(INSERT_ORDER, {"entry_id": msg.id, "number": msg.payload["number"]})


MEASUREMENTS: list[Measurement] = [
    Comparison(
        name="worker, no-op / raw batches of 100",
        prepare=filled_topic,
        raw=raw_batches,
        ours=work_doing_nothing,
        messages=3_000,
        bar=0.6,
        rounds=31,
    ),
    Comparison(
        name="worker, SQLite commit each / raw commit loop",
        prepare=orders_to_insert,
        raw=raw_one_by_one_with_commits,
        ours=work_with_commits,
        messages=500,
        bar=0.9,
    ),
    Comparison(
        name="worker, SQLite commit each / raw batches of 100 with commits",
        prepare=orders_to_insert,
        raw=raw_batches_with_commits,
        ours=work_with_commits,
        messages=500,
        bar=0.8,
    ),
]
