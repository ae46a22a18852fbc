"""Whatever a field of a key holds, its readers go on: no consumer ends, and nothing waits for ever."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from sqlalchemy import create_engine

from conquiet import (
    ConquietError,
    DrainError,
    DrainLimits,
    EmbeddedServer,
    QueueConfig,
    RedisStreamsQueue,
    drain,
)
from conquiet.consume.presence import _this_process
from conquiet.errors import PartitionBusyError
from conquiet.mq import DeadLetters, MqAdmin, MqCollector, Producer, Topics, drain_partition
from conquiet.mq.keys import TopicKeys
from conquiet.operations import diagnose, topic_facts
from conquiet.queue import StreamWriter, open_client
from conquiet.queue.ends import EndWatch
from tests.eventually import eventually
from tests.upgrade import record

THIS_PROCESS = _this_process(os.getpid())

#: What a field may hold that should be a number, an id, a name or a record.
ODD = {
    "empty": b"",
    "not-utf8": b"\xff\xfe",
    "infinite": b"inf",
    "minus-infinite": b"-inf",
    "no-number": b"nan",
    "hexadecimal": b"0x10",
    "fraction": b"1.5",
    "huge": b"9" * 30,
    "beyond-floats": b"9" * 400,
    "negative": b"-1",
    "text": b"soon",
    "list": b"[]",
    "null": b"null",
    "unknown-fields": b'{"newer":{"deep":[1,null]}}',
    "odd-kinds": json.dumps(
        {
            "schemaVersion": "1",
            "after": [],
            "lost": "x",
            "sent": -1,
            "seenAtMs": 1e300,
            "seenBy": {},
            "last": 5,
            "first_delivered_at_ms": "soon",
            "last_delay_ms": -1,
            "id": "x",
            "key": 5,
            "headers": [],
            "payload": 5,
            "failure": 5,
        }
    ).encode(),
    "infinite-record": b'{"lost":Infinity,"sent":NaN,"seenAtMs":Infinity,"first_delivered_at_ms":NaN}',
    "two-spaces": b"9999999999999999999999 a b",
    "drain-of-this-machine": f"99999999999999 x {THIS_PROCESS.rsplit(':', 2)[0]}:x:1 60000".encode(),
    "drain-of-no-process": b"99999999999999 x - 60000",
}
#: What no reader should let through.
NOT_OURS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, redis.RedisError, OSError)
SCORES = [float("inf"), float("-inf"), 1e300, -1.0, 0.5]


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with EmbeddedServer() as server, open_client(server.url) as client:
        record.leave_everything(client)
        record_end = client.time()[0]
        # The lease of the dead one has expired.
        eventually(lambda: client.time()[0] > record_end + record.SOON_MS / 1000 + 1)
        # With a loss in each mark.
        for stream, mark in ENDS:
            ends = EndWatch(client)
            ends.watch(stream, mark)
            ends.seen(stream, "9999999999999-0", b"{}")
            ends.check(stream)
        dumps = {key: client.dump(key) for key in client.scan_iter()}
        yield client, dumps


KEYS = TopicKeys(record.TOPIC, "single")
ENDS = [(record.STREAM, None), *((KEYS.stream(number), KEYS.end(number)) for number in (0, 1))]


def damages(client) -> list[tuple[bytes, bytes]]:
    """Each hash with each of its fields, each sorted set, each string."""
    found = []
    for key in sorted(client.keys()):
        if key.endswith(b":1"):
            # Of the other partition.
            continue
        match client.type(key):
            case b"hash":
                found += [(key, field) for field in client.hkeys(key)]
            case b"zset" | b"string":
                found.append((key, b""))
    return found


def damage(client, key: bytes, field: bytes, value: bytes) -> None:
    match client.type(key):
        case b"hash":
            client.hset(key, field, value)
        case b"string":
            client.set(key, value)
        case _:
            client.zadd(key, {value: 0})
            for score in SCORES:
                client.zadd(key, {b"%s-%d" % (value, score if abs(score) < 10 else 10): score})


class Readers:
    """All that reads the keys of a topic, or of a stream, and what of it went wrong."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._admin = MqAdmin(client)
        self.problems: list[str] = []
        #: What raised an error of ours: it says what it is about.
        self._refused: set[str] = set()
        self._seen: list[Any] = []

    def read(self, name: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (PartitionBusyError, *NOT_OURS) as error:
            # A lease that is damaged must not last for ever.
            self.problems.append(f"{name}: {type(error).__name__}: {error}")
        except (ConquietError, DrainError):
            self._refused.add(name)
        return None

    def topic(self) -> None:
        client = self._client
        topic = self.read("open", lambda: Topics(client).open(record.TOPIC))
        self._look(record.TOPIC, record.BILLING, ENDS[1])
        self.read("collector", lambda: list(MqCollector(client).collect()))
        if topic is None or topic.layout == "bare_stream":
            return
        producer = Producer(client)
        self.read("letters", lambda: DeadLetters(topic).list())
        self.read("delayed", lambda: self._admin.delayed(record.TOPIC))
        self.read("send once", lambda: producer.send(topic, {"n": 20}, partition=0, dedupe_id="once-20"))
        self.read("drain", lambda: producer.send(topic, {"n": "new"}, partition=0))
        limits = DrainLimits(idle_ms=1, max_failures=None)
        self.read("drain", lambda: drain_partition(topic, 0, record.BILLING, self._note, limits=limits))
        self._check_new()

    def stream(self) -> None:
        client, engine = self._client, create_engine("sqlite://")
        self._look(record.STREAM, record.LEDGER, ENDS[0])
        writer = StreamWriter(client, record.STREAM)
        self.read("once", lambda: writer.enqueue_once([{"n": 10}, {"n": 11}], dedupe_id="batch-1"))
        writer.enqueue({"n": "new"})
        queue = RedisStreamsQueue(client, QueueConfig(record.STREAM, record.LEDGER, "worker-1", block_ms=5))
        limits = DrainLimits(idle_ms=1, max_failures=None)
        # What failed is a DrainError at the end, a name that another one has a ConsumerBusyError.
        if self.read("drain", lambda: drain(queue, self._note, engine, limits)) is not None:
            self._check_new()

    def _look(self, name: str, group: str, end: tuple[str, str | None]) -> None:
        admin, ends = self._admin, EndWatch(self._client)
        self.read("doctor", lambda: diagnose([], [topic_facts(self._client, name)]))
        self.read("groups", lambda: admin.groups(name))
        self.read("pending", lambda: admin.pending(name, group))
        self.read("owners", lambda: admin.owners(name, group))
        ends.watch(*end)
        for last in ("9999999999998-0", "9999999999999-0"):
            ends.seen(end[0], last, b"{}")
            self.read("end", lambda: ends.check(end[0]))

    def _note(self, msg: Any, _session: Any = None) -> None:
        self._seen.append(msg.payload)

    def _check_new(self) -> None:
        if {"n": "new"} not in self._seen and "drain" not in self._refused:
            self.problems.append("the new message was not handled")


@pytest.mark.parametrize("odd", ODD)
def test_every_reader_tolerates_what_is_in_a_field(server, odd):
    client, dumps = server
    problems: dict[str, list[str]] = {}
    for key, field in damages(client):
        client.flushdb()
        for name, dump in dumps.items():
            client.restore(name, 0, dump)
        damage(client, key, field, ODD[odd])
        readers = Readers(client)
        if record.STREAM.encode() in key:
            readers.stream()
        else:
            readers.topic()
        if readers.problems:
            problems[f"{key!r} {field!r}"] = readers.problems

    assert problems == {}, json.dumps(problems, indent=1)
