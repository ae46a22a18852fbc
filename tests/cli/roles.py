"""What each role of docs/security.md does for a living, as calls of the library."""

from __future__ import annotations

import threading
from functools import partial

from sqlalchemy import create_engine

from conquiet import DrainLimits, QueueConfig, QueueConsumer, RedisStreamsQueue, drain, drain_stale
from conquiet.mq import (
    ConsumerConfig,
    DeadLetter,
    DeadLetters,
    Message,
    MqAdmin,
    PartitionConsumer,
    Producer,
    Retry,
    RetryPolicy,
    TopicPolicies,
    Topics,
    drain_partition,
)
from conquiet.mq.keys import TopicKeys
from conquiet.mq.own.leases import LeaseStore
from conquiet.operations import diagnose, server_facts, take_samples, topic_facts
from conquiet.queue import StreamWriter, peek_backlog
from conquiet.queue.ends import EndWatch, deleted_streams_key, end_mark
from tests.eventually import eventually

STREAM = "orders"
TOPIC = "orders"
GROUP = "billing"
ADMINISTERED = "shipping"


def stream_producer(client) -> None:
    """Enqueues, many and once."""
    writer = StreamWriter(client, STREAM)
    writer.enqueue_many([{"n": n} for n in range(10)])
    assert writer.enqueue_once([{"n": 10}], dedupe_id="a") == writer.enqueue_once([{"n": 10}], dedupe_id="a")


def stream_consumer(client) -> None:
    """Reads, acks, claims, renews, hands back, gives up, and looks at its backlog."""
    engine = create_engine("sqlite://")
    with queue_of(client, "worker-1") as queue:
        (first,) = queue.read(50)
        (second,) = queue.ack_and_read([first.id], 50)
        assert queue.renew([second]) == [second]
        assert queue.hand_back([second]) == [second]
        assert drain(queue, accept, engine, DrainLimits(max_messages=3, idle_ms=50)).handled == 3
        QueueConsumer(queue).next(50)
    with queue_of(client, "worker-2") as other:
        limits = DrainLimits(max_messages=2, idle_ms=50)
        report = drain(other, accept, engine, limits, take_over_from=["worker-1"])
        assert report.handled == 2
        other.read(50, count=2)
    with queue_of(client, "worker-3") as last:
        limits = DrainLimits(max_messages=1, max_deliveries=1)
        assert drain_stale(last, fail_once, engine, limits, min_idle_ms=0).dead_lettered == 1
        last.claim_stale(0)
        last.backlog_stats()
    peek_backlog(client, stream=STREAM, group=GROUP)
    report_a_loss(client, STREAM)


def report_a_loss(client, stream: str, mark: str | None = None) -> None:
    """Checks the stream's end, and misses an entry; without a mark it would ask what was deleted."""
    client.zscore(deleted_streams_key(client), stream)
    ends = EndWatch(client)
    ends.watch(stream, mark)
    for _ in range(2):
        ends.check(stream)
    ends.seen(stream, "9999999999999-0", b"{}")
    ends.check(stream)
    assert client.hget(mark or end_mark(stream), "loss:1")


def config(name: str) -> QueueConfig:
    return QueueConfig(STREAM, GROUP, name, block_ms=50)


def queue_of(client, name: str) -> RedisStreamsQueue:
    return RedisStreamsQueue(client, config(name))


def accept(msg, session) -> None:
    """Handles everything."""


def fail_once(msg, session) -> None:
    raise AssertionError("a message that was delivered too often is not handled")


def leave_stream_consumers(client) -> None:
    """What an administrator finds: a consumer with a message, one without, and three dead letters."""
    queue_of(client, "holds-one").read(50)
    drain(
        queue_of(client, "gone"), give_up, create_engine("sqlite://"), DrainLimits(max_messages=3, idle_ms=50)
    )
    client.execute_command("XGROUP", "CREATECONSUMER", STREAM, GROUP, "gone")
    # The stream is also consumed as a partition.
    assert LeaseStore(Topics(client).open(STREAM), GROUP).acquire(0, "worker-1", 60_000) is not None


def leave_dead_letters(client) -> None:
    """Every message of the topic, given up."""
    topic = Topics(client).open(TOPIC)
    for partition in topic.partitions:
        drain_partition(topic, partition, ADMINISTERED, give_up, limits=DrainLimits(idle_ms=20))


def give_up(msg, *_session):
    return DeadLetter("given up")


def leave_mq_group(client) -> None:
    """A group that has begun in one partition only, with a consumer that is gone."""
    stream = Topics(client).open(TOPIC).keys.stream(0)
    client.xgroup_create(stream, "audit", "0-0")
    client.execute_command("XGROUP", "CREATECONSUMER", stream, "audit", "gone")


def doctor(client, name: str) -> None:
    """Every fact that the doctor can have."""
    servers = server_facts(client)
    assert servers[0].config is not None
    assert servers[0].missing_commands == ()
    diagnose(servers, [topic_facts(client, name)])


def stream_admin(client) -> None:
    """Looks at groups and pending messages, moves and deletes groups, trims, prunes, replays and purges."""
    admin = MqAdmin(client)
    admin.groups(STREAM)
    admin.pending(STREAM, GROUP)
    admin.owners(STREAM, GROUP)
    assert [one.name for one in admin.prune_consumers(STREAM, GROUP)] == ["gone"]
    letters = DeadLetters(Topics(client).open(STREAM))
    first, second, third = letters.list().letters
    assert letters.replay(first.id) == first.original_id
    assert letters.replay(second.id, to_all_groups=True) is not None
    assert letters.purge([third.id]) == 1
    assert letters.count() == letters.purge(older_than_ms=0) == 0
    admin.reset_group(STREAM, GROUP, "end", dry_run=False)
    admin.trim(STREAM, retention_length=1)
    take_samples(client, [STREAM])
    doctor(client, STREAM)
    admin.delete_group(STREAM, GROUP, force=True)


def mq_producer(client) -> None:
    """Sends plain, in batches, once and delayed."""
    producer = Producer(client)
    producer.send(TOPIC, {"n": "plain"}, key="a")
    producer.send_many(TOPIC, [Message(payload={"n": n}, key=str(n)) for n in range(10)])
    for _ in range(2):
        producer.send(TOPIC, {"n": "once"}, dedupe_id="a", key="a")
    forgetful = Producer(client, dedupe_window_ms=1)
    for n in range(20):  # each forgets the ids whose window is over
        forgetful.send(TOPIC, {"n": "once"}, dedupe_id=f"short-{n}", key="a")
    producer.send(TOPIC, {"n": "delayed"}, delay_ms=1)


def mq_consumer(client) -> None:
    """Owns partitions, handles, retries in both ways, gives up, takes over, moves delayed messages."""
    topic = Topics(client).open(TOPIC)
    seen: list[object] = []

    def handle(msg):
        seen.append(msg.payload["n"])
        if msg.payload["n"] == 1 and msg.attempt == 1:
            return Retry(1)
        if msg.payload["n"] == 2:
            return DeadLetter("no twos")
        return None

    retry = RetryPolicy(base_delay_ms=1)
    for mode in ("in_place", "requeue"):
        settings = ConsumerConfig(
            retry=retry, retry_mode=mode, lease_ttl_ms=600, max_outage_s=0.2, block_ms=20
        )
        consumer = PartitionConsumer(topic, f"{GROUP}-{mode}", handle, config=settings)
        run_until(consumer, partial(has_settled, topic, f"{GROUP}-{mode}", seen))
        seen.clear()
    report_a_loss(client, topic.keys.stream(0), topic.keys.end(0))
    strict = ConsumerConfig(ordering="strict")
    for handler in (lambda msg: Retry(60_000), handle):  # the second owner meets retries that wait
        for partition in topic.partitions:
            drain_partition(topic, partition, GROUP, handler, limits=DrainLimits(idle_ms=30), config=strict)


def check_mq_consumer(client) -> None:
    """Failure records go with the ack, members and names leave; what is delayed or copied was added once."""
    keys = TopicKeys(TOPIC, "single")
    for mode in ("in_place", "requeue"):
        group = f"{GROUP}-{mode}"
        assert not any(client.hgetall(keys.failures(group, one)) for one in range(2))
        assert client.zcard(keys.members(group)) == 0
        assert not any(client.xinfo_consumers(keys.stream(one), group) for one in range(2))
    assert client.zcard(keys.delayed(0)) == client.hlen(keys.delayed_items(0)) == 0
    entries = [fields[b"data"] for one in range(2) for _, fields in client.xrange(keys.stream(one))]
    assert sum(b'"forGroup":"billing-requeue"' in data for data in entries) == 1
    assert sum(b'"n":"delayed"' in data for data in entries) == 1


def has_settled(topic, group: str, seen: list[object]) -> bool:
    if not ({"plain", "once", "delayed", *range(10)} <= set(seen) and seen.count(1) > 1):
        return False
    client, keys = topic.client, topic.keys
    return not any(client.xpending(keys.stream(one), group)["pending"] for one in topic.partitions)


def run_until(consumer, is_done) -> None:
    failures: list[BaseException] = []
    worker = threading.Thread(target=run_into, args=(consumer, failures))
    worker.start()
    try:
        eventually(lambda: failures or is_done())
    finally:
        consumer.stop()
        worker.join()
    assert not failures, failures


def run_into(consumer, failures) -> None:
    try:
        consumer.run()
    except BaseException as error:
        failures.append(error)


def mq_admin(client) -> None:
    """Creates, grows and deletes topics; mends groups; replays and purges letters; trims; the doctor."""
    topics, admin = Topics(client), MqAdmin(client)
    admin.topics()
    topics.create("refunds", 1)
    topics.grow("refunds", 2)
    topics.change_policies("refunds", TopicPolicies(retention_length=10))
    Producer(client).send_many("refunds", [{"n": n} for n in range(4)])
    waiting = Producer(client).send("refunds", {"n": 4}, delay_ms=60_000)
    assert [message.name for message in admin.delayed("refunds")] == [waiting]
    assert admin.cancel_delayed("refunds", [waiting]) == 1
    letters = DeadLetters(topics.open(TOPIC))
    (letter, *others) = letters.list().letters
    assert letters.replay(letter.id) is not None
    letters.purge([one.id for one in others])
    letters.purge(older_than_ms=0)
    admin.groups(TOPIC)
    admin.pending(TOPIC, ADMINISTERED, sort="id")
    admin.owners(TOPIC, ADMINISTERED)
    assert [one.name for one in admin.prune_consumers(TOPIC, "audit")] == ["gone"]
    admin.reset_group(TOPIC, "audit", "start", dry_run=False)
    admin.trim(TOPIC, retention_length=1)
    admin.delete_group(TOPIC, ADMINISTERED, force=True)
    take_samples(client)
    doctor(client, TOPIC)
    topics.delete("refunds")
