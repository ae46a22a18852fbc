"""Real consumers in every situation that a metric counts; what they emitted is scraped over HTTP."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from prometheus_client import start_http_server
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import create_engine

from conquiet import DrainLimits, QueueConfig, RedisStreamsQueue
from conquiet.errors import DatabaseUnavailableError
from conquiet.mq import DeadLetterPolicy, Producer, RetryPolicy, Topic, TopicPolicies, Topics, drain_partition
from conquiet.spark.query_metrics import METRICS as SPARK_METRICS
from conquiet.tasks import TaskApp
from conquiet.tasks.beat.metrics import METRICS as BEAT_METRICS
from conquiet.tasks.metrics import METRICS
from tests.cli.processes import running
from tests.eventually import HANG_S, eventually
from tests.with_redis.mq.consuming import GROUP, Consumers, metric, quick

#: Names of samples, each with its labels.
Emitted = dict[str, frozenset[str]]


def emit_everything(client: redis.Redis, directory: Path) -> None:
    """Let consumers work, fail, hang, lose their lease, their database and their stream."""
    topics, producer = Topics(client), Producer(client)
    with _consumers() as start:
        _handle_fail_and_hang(topics, producer, start)
        _lose_a_lease(topics.create("lost"), producer, start)
        _meet_no_stream(topics.create("broken"), client, start)
    _miss_the_database(topics.create("homeless"), producer, directory)
    _use_a_plain_stream(client)
    _leave_a_backlog(topics.create("waiting"), producer)
    _lose_a_message(topics.create("failed-over"), producer)
    _count_by_definition()
    _leave_tasks(client)


def _count_by_definition() -> None:
    # Their own tests let each of them happen.
    for metrics in (METRICS, BEAT_METRICS, SPARK_METRICS):
        for name, (_, _, labels) in metrics.definitions.items():
            metrics.emit(name, 1, *("any" for _ in labels))


def _leave_tasks(client: redis.Redis) -> None:
    connection = client.connection_pool.connection_kwargs
    with TaskApp(f"redis://{connection['host']}:{connection['port']}/0") as app:
        app.enqueue("any")


def scraped(url: str) -> Emitted:
    """What the workers of this process and `conquiet metrics serve` tell a scrape."""
    server, thread = start_http_server(0, addr="127.0.0.1")
    try:
        found = _samples_at(f"http://127.0.0.1:{server.server_port}/metrics")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    with running("metrics", "serve", "--port", "0", "--json", "--url", url) as process:
        assert process.stdout is not None
        found |= _samples_at(json.loads(process.stdout.readline())["url"])
    return found


def _samples_at(address: str) -> Emitted:
    with urllib.request.urlopen(address, timeout=HANG_S) as reply:
        families = list(text_string_to_metric_families(reply.read().decode()))
    return {
        sample.name: frozenset(sample.labels)
        for family in families
        for sample in family.samples
        if sample.name.startswith("conquiet_") and not sample.name.endswith("_created")
        # A counter at 0 has not counted anything: it would only prove that its name was written twice.
        if sample.value or family.type == "gauge"
    }


@contextmanager
def _consumers() -> Iterator[Consumers]:
    start = Consumers()
    try:
        yield start
    finally:
        start.end()


def _handle_fail_and_hang(topics: Topics, producer: Producer, start: Consumers) -> None:
    letters = DeadLetterPolicy(retention_length=1)
    policies = TopicPolicies(retention_length=1, dead_letters=letters, trim_every_s=1)
    topic = topics.create("busy", policies=policies)
    client, place = topic.client, {"topic": topic.name, "group": GROUP}
    vanishing, _left = producer.send_many(topic.name, [{"n": "vanishing"}, {"n": "left"}])
    client.xgroup_create(topic.keys.stream(0), GROUP, "0-0")
    client.xreadgroup(GROUP, "dead", {topic.keys.stream(0): ">"})
    client.xdel(topic.keys.stream(0), vanishing)
    client.zadd(topic.keys.delayed(0), {"stuck": 1})
    for _ in range(2):
        client.xadd(topic.keys.dead_letters(0), {"data": "{}"})
    producer.send_many(topic.name, [{"n": "fail"}, {"n": "hang"}])
    client.xadd(topic.keys.stream(0), {"data": '{"schemaVersion":2,"payload":{}}'})

    def handle(msg: object) -> None:
        match msg.payload["n"]:  # type: ignore[attr-defined]
            case "fail":
                raise ValueError("as it should")
            case "hang":
                eventually(lambda: metric("conquiet_mq_handlers_overdue", **place) == 1)

    # More than two: an attempt that ends in a lost lease, as on a machine that stands still, is no retry.
    retry = RetryPolicy(base_delay_ms=1, max_delay_ms=1, max_attempts=10)
    start(topic, handle, config=quick(retry=retry, handler_timeout_s=0.01))
    results = [place | {"partition": "0", "result": result} for result in ("ack", "retry", "dead_letter")]
    eventually(lambda: all(metric("conquiet_mq_settled_total", **labels) >= 1 for labels in results))
    eventually(lambda: metric("conquiet_mq_trimmed_total", topic=topic.name, partition="0") > 0)
    eventually(lambda: metric("conquiet_mq_delayed_stuck_total", topic=topic.name) > 0)
    eventually(lambda: metric("conquiet_mq_dead_letters_trimmed_total", topic=topic.name) > 0)


def _lose_a_lease(topic: Topic, producer: Producer, start: Consumers) -> None:
    producer.send(topic.name, {"n": 1})
    lease = topic.keys.lease(GROUP, 0)
    start(topic, lambda _msg: topic.client.delete(lease))
    eventually(
        lambda: metric("conquiet_mq_leases_lost_total", topic=topic.name, partition="0", group=GROUP) > 0
    )


def _meet_no_stream(topic: Topic, client: redis.Redis, start: Consumers) -> None:
    client.set(topic.keys.stream(0), "no stream")
    place = {"topic": topic.name, "partition": "0", "group": GROUP}
    consumer = start(topic, lambda _msg: None)
    eventually(lambda: metric("conquiet_mq_worker_failures_total", **place) > 0)
    consumer.stop()
    client.delete(topic.keys.stream(0))


def _miss_the_database(topic: Topic, producer: Producer, directory: Path) -> None:
    producer.send(topic.name, {"n": 1})
    engine = create_engine(f"sqlite:///{directory}/missing/directory.db")
    try:
        drain_partition(
            *(topic, 0, GROUP, lambda _msg, _session: None, engine),
            limits=DrainLimits(max_messages=1),
            config=quick(max_outage_s=0.05),
        )
    except DatabaseUnavailableError:
        return
    raise AssertionError("the database was there")


def _use_a_plain_stream(client: redis.Redis) -> None:
    queue = RedisStreamsQueue(client, QueueConfig("plain", GROUP, "worker-1"))
    queue.enqueue({"n": 1})
    queue.read(50)
    (msg,) = queue.claim_stale(0)
    queue.ack(msg)


def _leave_a_backlog(topic: Topic, producer: Producer) -> None:
    producer.send_many(topic.name, [{"n": 1}, {"n": 2}])
    topic.client.xgroup_create(topic.keys.stream(0), GROUP, "0-0")
    topic.client.xreadgroup(GROUP, "somebody", {topic.keys.stream(0): ">"}, count=1)


def _lose_a_message(topic: Topic, producer: Producer) -> None:
    stream, client = topic.keys.stream(0), topic.client
    producer.send(topic.name, {"n": 1})
    producer._ends.check(stream)
    before = client.dump(stream)
    assert before is not None
    producer.send(topic.name, {"n": 2})
    # As a replica that lagged.
    client.restore(stream, 0, before, replace=True)
    producer._ends.check(stream)
