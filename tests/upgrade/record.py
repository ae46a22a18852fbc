"""Records what this version leaves on a server when its processes die: `python -m tests.upgrade.record`.

Run it when a version is released. The states of earlier versions stay: every later version takes them over.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine

from conquiet import DrainError, DrainLimits, EmbeddedServer, QueueConfig, RedisStreamsQueue, drain
from conquiet.consume.scripts import publish
from conquiet.mq import (
    ConsumerConfig,
    DeadLetter,
    DeadLetterPolicy,
    DeadLetters,
    Message,
    Producer,
    Retry,
    RetryPolicy,
    TopicPolicies,
    Topics,
    drain_partition,
)
from conquiet.mq.own.leases import LeaseStore
from conquiet.mq.own.partition import LeasedPartition
from conquiet.queue import StreamWriter, open_client
from conquiet.queue.connection import key_beside
from conquiet.queue.ends import EndWatch
from tests.services import Client
from tests.upgrade.state import State, read_state

STATES = Path(__file__).parent / "states"
#: Raised when what is left has changed: 1.1 has `ttlMs` in its leases and a heartbeat of each drain, 1.2 the
#: ends of streams, the limits of members, and what a relay has published.
VERSION = "1.2"

TOPIC, STREAM = "orders", "payments"
BILLING, SHIPPING, LEDGER = "billing", "shipping", "ledger"
DEAD = "worker-dead"
#: What a relay that died before its commit has published, by the names of its rows.
PUBLISHED = {"eu-17": 12, "eu-18": 13}
PUBLISHED_KEY = key_beside(STREAM, "once:outbox:shop")
#: How long after the recording retries and delayed messages are due, and leases expire.
SOON_MS = 1_500


def main() -> None:
    # Each failure is one of the states to record.
    logging.disable(logging.WARNING)
    with EmbeddedServer() as server, open_client(server.url) as client:
        state = leave_everything(client)
    path = STATES / f"{VERSION}.json"
    path.write_text(json.dumps(state, indent=1, ensure_ascii=False) + "\n")
    print(
        f"{path.name}: {len(state['keys'])} keys; to be handled: {Counter(map(len, state['owed'].values()))}"
    )


def leave_everything(client: Client) -> State:
    """Work and die at every place; returns the state, and which messages are still owed to which group."""
    owed = _leave_topic(client) | _leave_stream(client)
    return read_state(client) | {"owed": {name: sorted(numbers) for name, numbers in owed.items()}}


def _leave_topic(client: Client) -> dict[str, set[int]]:
    policies = TopicPolicies(
        retention_length=10_000,
        retention_ms=10**12,
        dead_letters=DeadLetterPolicy(retention_length=10_000),
        trim_every_s=3_600,
    )
    topic = Topics(client).create(TOPIC, 2, policies)
    producer = Producer(client)
    producer.send_many(
        TOPIC,
        [
            Message(payload={"n": n}, key=f"key-{n % 5}", headers={"trace": str(n)}, partition=n % 2)
            for n in range(20)
        ],
    )
    for n in (20, 21):
        producer.send(TOPIC, {"n": n}, partition=n % 2, dedupe_id=f"once-{n}", max_retries=3)
    for n in (22, 23):
        producer.send(TOPIC, {"n": n}, partition=n % 2, delay_ms=SOON_MS)
    client.xadd(topic.keys.stream(0), {"data": "not json"})
    owed = {group: set(range(24)) for group in (BILLING, SHIPPING)}

    # The first six of each partition: done, given up, failed, or waiting for a retry.
    def handler(group: str) -> Any:
        def handle(msg: Any) -> Any:
            n = msg.payload["n"]
            match n // 2 % 3:
                case 0:
                    owed[group].discard(n)
                    return None
                case 1 if n < 6:
                    owed[group].discard(n)
                    return DeadLetter("given up")
                case 1:
                    return Retry(SOON_MS, "later")
            raise ValueError(f"no {n}")

        return handle

    for group, mode in ((BILLING, "in_place"), (SHIPPING, "requeue")):
        retry = RetryPolicy(backoff="fixed", base_delay_ms=SOON_MS, max_delay_ms=SOON_MS)
        settings: Any = {"retry": retry, "retry_mode": mode, "block_ms": 20}
        for partition in topic.partitions:
            config = ConsumerConfig(consumer_name=f"{group}-{partition}", **settings)
            limits = DrainLimits(max_messages=6, max_failures=None, idle_ms=50)
            drain_partition(topic, partition, group, handler(group), limits=limits, config=config)
    # A letter that was replayed and not handled again.
    letter = next(one for one in DeadLetters(topic).list().letters if one.group == BILLING)
    assert DeadLetters(topic).replay(letter.id) is not None
    assert letter.payload is not None
    owed[BILLING].add(letter.payload["n"])
    # A consumer that has read three messages of each partition, began one, and died with its leases.
    leases = LeaseStore(topic, BILLING)
    leases.heartbeat(DEAD, SOON_MS, max_partitions=2)
    for partition in topic.partitions:
        lease = leases.acquire(partition, DEAD, SOON_MS)
        assert lease is not None
        leased = LeasedPartition(topic, BILLING, lease, leases)
        leased.settle_and_read([], 3)
        _mark_end(client, topic.keys.stream(partition), topic.end_mark(partition))
    return {f"{TOPIC}/{group}": numbers for group, numbers in owed.items()}


def _leave_stream(client: Client) -> dict[str, set[int]]:
    writer, engine, owed = StreamWriter(client, STREAM), create_engine("sqlite://"), set(range(14))
    writer.enqueue_many([{"n": n} for n in range(10)])
    writer.enqueue_once([{"n": 10}, {"n": 11}], dedupe_id="batch-1")
    client.xadd(STREAM, {"data": "not json"})
    publish_again(client)

    def handle(msg: Any, _session: Any) -> Any:
        n = msg.payload["n"]
        if n == 2:
            raise ValueError("no twos")
        owed.discard(n)
        return DeadLetter("given up") if n == 1 else None

    def queue(name: str) -> RedisStreamsQueue:
        return RedisStreamsQueue(client, QueueConfig(STREAM, LEDGER, name, block_ms=20))

    for _ in range(2):  # the second time what failed is delivered again
        with suppress(DrainError):
            drain(queue("worker-1"), handle, engine, DrainLimits(max_messages=4))
    dead = queue(DEAD)
    read = dead.read(20, count=3)
    dead.hand_back(read[1:])
    _mark_end(client, STREAM, None)
    return {f"{STREAM}/{LEDGER}": owed}


def publish_again(client: Client) -> list[Any]:
    """As a relay does that finds the rows of one that died; returns the reply."""
    rows = [(name, json.dumps({"n": n}).encode()) for name, n in PUBLISHED.items()]
    return publish(client, [(STREAM, PUBLISHED_KEY, rows)], known_for_ms=30 * 24 * 3_600_000)


def _mark_end(client: Client, stream: str, mark: str | None) -> None:
    ends = EndWatch(client, DEAD)
    ends.watch(stream, mark)
    ends.check(stream)


if __name__ == "__main__":
    main()
