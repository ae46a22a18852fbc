"""A server as an earlier version left it, and as a later one would: nothing is lost or doubled."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress

import pytest
from sqlalchemy import create_engine

from conquiet import (
    DrainError,
    DrainLimits,
    EmbeddedServer,
    QueueConfig,
    RedisStreamsQueue,
    drain,
    drain_stale,
)
from conquiet.errors import PartitionBusyError
from conquiet.mq import ConsumerConfig, DeadLetters, MqAdmin, MqCollector, Producer, Topics, drain_partition
from conquiet.operations import diagnose, server_facts, take_samples, topic_facts
from conquiet.queue import StreamWriter, open_client, peek_backlog
from conquiet.queue.ends import EndWatch
from tests.eventually import eventually
from tests.services import REDIS_KINDS, redis_binary, unavailable
from tests.upgrade.later import PENDING, UNDELIVERED, WAITING, later_version
from tests.upgrade.record import (
    BILLING,
    DEAD,
    LEDGER,
    PUBLISHED,
    PUBLISHED_KEY,
    SHIPPING,
    STATES,
    STREAM,
    TOPIC,
    publish_again,
)
from tests.upgrade.state import bytes_of, write_state
from tests.with_redis.mq.consuming import Consumers, pending, quick

HOUR_MS = 3_600_000
RECORDED = sorted(STATES.glob("*.json"))


@pytest.fixture(scope="module", params=REDIS_KINDS)
def client(request):
    """A server of the test's own: what was recorded has the names of a whole server."""
    binary = redis_binary(request.param)
    if binary is None:
        unavailable("redis", f"no binary for {request.param}")
    with EmbeddedServer(binary=binary) as server, open_client(server.url) as opened:
        yield opened


@pytest.fixture(params=RECORDED, ids=lambda path: f"version-{path.stem}")
def recorded(request, client):
    for key in client.scan_iter("*"):
        client.delete(key)
    return json.loads(request.param.read_text())


@pytest.fixture(params=["as recorded", "with a later version's"])
def state(request, recorded):
    return recorded if request.param == "as recorded" else later_version(recorded)


class Handled(Counter[int]):
    """A handler that counts what it was given, and remembers the attempts."""

    def __init__(self):
        super().__init__()
        self.attempts = {}

    def __call__(self, msg, _session=None):
        self[msg.payload["n"]] += 1
        self.attempts[msg.payload["n"]] = msg.attempt


def expected(state, group):
    return dict.fromkeys(state["owed"][f"{TOPIC}/{group}"], 1)


def is_later(state):
    return any(entry_id == UNDELIVERED for entry_id, _ in stream_of(state, 0)["entries"])


def stream_of(state, partition):
    return state["keys"][f"stream:topic:{TOPIC}:p:{partition}"]["value"]


def kept_pending(state, group):
    """What only a later version can handle, with its delivery count."""
    if not is_later(state):
        return {}
    return {PENDING: 2, WAITING: 3, UNDELIVERED: 0} if group == BILLING else {UNDELIVERED: 0}


def check_taken_over(client, state, handled):
    topic = Topics(client).open(TOPIC)
    for group, counts in handled.items():
        assert counts == expected(state, group)
        assert {entry: count for entry, (_, count) in pending(topic, group).items()} == kept_pending(
            state, group
        )
        failures = [client.hlen(topic.keys.failures(group, partition)) for partition in topic.partitions]
        assert failures == [0, 0]
    # The malformed entry is one for each group.
    recorded = len(state["keys"][topic.keys.dead_letters(0)]["value"]["entries"])
    assert DeadLetters(topic).count() == recorded + len(handled)
    stuck = 1 if is_later(state) else 0
    assert client.zcard(topic.keys.delayed(0)) == stuck


def waiting_numbers(state):
    """The payloads of the entries that waited for their retry in place."""
    for partition in range(2):
        record = state["keys"][f"streaming:mq:waiting:{TOPIC}:{BILLING}:{partition}"]
        ids = {entry_id for entry_id, _ in record["value"]}
        for entry_id, fields in stream_of(state, partition)["entries"]:
            data = json.loads(fields[0][1]) if entry_id in ids else {}
            if data.get("schemaVersion") == 1:
                yield data["payload"]["n"]


def test_consumers_take_over_what_another_version_left(client, state):
    write_state(client, state)
    handled = {BILLING: Handled(), SHIPPING: Handled()}
    start = Consumers()
    try:
        topic = Topics(client).open(TOPIC)
        running = [start(topic, handler, group=group, config=quick()) for group, handler in handled.items()]

        eventually(lambda: all(handled[group].total() >= len(expected(state, group)) for group in handled))
        eventually(
            lambda: all(len(pending(topic, group)) == len(kept_pending(state, group)) for group in handled)
        )
        assert all(one.is_running for one in running)
    finally:
        start.end()

    check_taken_over(client, state, handled)
    retried = list(waiting_numbers(state))
    assert len(retried) == 6
    assert {handled[BILLING].attempts[n] for n in retried} == {2}


def test_drains_of_partitions_take_over_what_another_version_left(client, state):
    write_state(client, state, age_ms=HOUR_MS)
    handled = {BILLING: Handled(), SHIPPING: Handled()}
    topic = Topics(client).open(TOPIC)

    for group, handler in handled.items():
        for partition in topic.partitions:
            limits, config = DrainLimits(idle_ms=300), ConsumerConfig(block_ms=20)
            drain_partition(topic, partition, group, handler, limits=limits, config=config)

    check_taken_over(client, state, handled)


def test_drains_of_a_plain_stream_take_over_what_another_version_left(client, state):
    write_state(client, state)
    handled, engine, limits = Handled(), create_engine("sqlite://"), DrainLimits(idle_ms=50)

    for drained in (
        lambda queue: drain(queue, handled, engine, limits),
        lambda queue: drain_stale(queue, handled, engine, limits, min_idle_ms=0),
    ):
        with suppress(DrainError):  # of the malformed entry, which stays pending
            drained(RedisStreamsQueue(client, QueueConfig(STREAM, LEDGER, "worker-1", block_ms=20)))

    left = peek_backlog(client, stream=STREAM, group=LEDGER)
    assert handled == dict.fromkeys(state["owed"][f"{STREAM}/{LEDGER}"], 1)
    assert (left.pending, left.lag) == (1, 0)


def test_a_lease_of_another_version_is_respected_until_it_expires(client, state):
    for partition in range(2):
        for pair in state["keys"][f"streaming:mq:lease:{TOPIC}:{BILLING}:{partition}"]["value"]:
            if pair[0] == "expiresAtMs":
                pair[1] = str(int(pair[1]) + HOUR_MS)
        state["keys"][f"streaming:mq:lease:{TOPIC}:{BILLING}:{partition}"]["ttl_ms"] = HOUR_MS
    write_state(client, state)
    topic = Topics(client).open(TOPIC)

    with pytest.raises(PartitionBusyError):
        drain_partition(topic, 0, BILLING, Handled())

    assert [one.owner for one in MqAdmin(client).owners(topic, BILLING).partitions] == [DEAD, DEAD]


def test_dead_letters_of_another_version_are_listed_replayed_and_handled(client, state):
    write_state(client, state, age_ms=HOUR_MS)
    topic = Topics(client).open(TOPIC)
    letters, handled = DeadLetters(topic), Handled()
    listed = letters.list().letters
    mine = [one.payload["n"] for one in listed if one.group == BILLING and one.payload]
    assert len(listed) == len(state["keys"][topic.keys.dead_letters(0)]["value"]["entries"])

    report = letters.replay_all()
    for partition in topic.partitions:
        drain_partition(topic, partition, BILLING, handled, limits=DrainLimits(idle_ms=300))
    (payment,) = DeadLetters(Topics(client).open(STREAM)).list().letters
    DeadLetters(Topics(client).open(STREAM)).replay(payment.id)

    refused = (UNDELIVERED,) if is_later(state) else ()
    assert (report.replayed, report.refused) == (len(listed) - len(refused), refused)
    assert mine
    assert handled == expected(state, BILLING) | dict.fromkeys(mine, 1)
    before = len(state["keys"][STREAM]["value"]["groups"][0]["pending"])
    assert peek_backlog(client, stream=STREAM, group=LEDGER).pending == before + 1


def test_figures_of_what_another_version_left_are_those_of_the_server(client, state):
    write_state(client, state)
    admin = MqAdmin(client)

    for name, streams in ((TOPIC, [f"stream:topic:{TOPIC}:p:{n}" for n in range(2)]), (STREAM, [STREAM])):
        counts: Counter[str] = Counter()
        for stream in streams:
            for group in state["keys"][stream]["value"]["groups"]:
                shown = bytes_of(group["name"]).decode(errors="backslashreplace")
                counts[shown] += len(group["pending"])
        assert {one.group: one.pending for one in admin.groups(name)} == counts
        for group in (BILLING, SHIPPING) if name == TOPIC else (LEDGER,):
            assert len(admin.pending(name, group).entries) == counts[group]
        diagnose(server_facts(client), [topic_facts(client, name)])
        assert {sample.group for sample in take_samples(client, [name])} == set(counts)
    assert [one.name for one in admin.topics()] == [TOPIC]
    families = {one.name: one for one in MqCollector(client).collect()}
    assert families["conquiet_mq_up"].samples[0].value == 1


def test_dedupe_ids_of_another_version_are_known(client, state):
    write_state(client, state)
    lengths = [client.xlen(f"stream:topic:{TOPIC}:p:{n}") for n in range(2)] + [client.xlen(STREAM)]
    known = dict(state["keys"][f"streaming:mq:dedupe:{TOPIC}"]["value"])

    again = Producer(client).send(TOPIC, {"n": 20}, partition=0, dedupe_id="once-20")
    ids = StreamWriter(client, STREAM).enqueue_once([{"n": 10}, {"n": 11}], dedupe_id="batch-1")

    assert again == known["once-20"]
    assert ids == [entry_id for _, entry_id in state["keys"][f"{{{STREAM}}}:once:batch-1"]["value"]]
    assert [client.xlen(f"stream:topic:{TOPIC}:p:{n}") for n in range(2)] + [client.xlen(STREAM)] == lengths


def test_rows_that_a_relay_of_another_version_has_published_are_not_published_again(client, state):
    write_state(client, state)
    if PUBLISHED_KEY not in state["keys"]:
        pytest.skip("that version was recorded without a relay")
    known, length = dict(map(tuple_of, state["keys"][PUBLISHED_KEY]["value"])), client.xlen(STREAM)

    ((ids, new),) = publish_again(client)

    assert (ids, new) == ([known[name] for name in PUBLISHED], [])
    assert client.xlen(STREAM) == length


def tuple_of(pair):
    """With names that can be looked up."""
    name, value = pair
    return (name if isinstance(name, str) else bytes_of(name)), value


def test_what_another_version_wrote_about_ends_and_limits_reports_no_loss_and_keeps_nobody_from_owning(
    client, state, caplog
):
    write_state(client, state)
    handled = Handled()
    topic, start = Topics(client).open(TOPIC), Consumers()
    try:
        start(topic, handled, config=quick(max_partitions=2))
        eventually(lambda: handled.total() >= len(expected(state, BILLING)))
    finally:
        start.end()
    ends = EndWatch(client)
    for partition in topic.partitions:
        ends.watch(topic.keys.stream(partition), topic.end_mark(partition))
        ends.check(topic.keys.stream(partition))
    ends.watch(STREAM)
    ends.check(STREAM)

    assert handled == expected(state, BILLING)
    assert "has lost entries" not in caplog.text
    findings = diagnose(server_facts(client), [topic_facts(client, name) for name in (TOPIC, STREAM)])
    assert "loss" not in {finding.check for finding in findings}
