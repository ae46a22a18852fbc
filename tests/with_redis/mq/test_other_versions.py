"""What another version, or another program, left on the server ends no consumer and no page of figures."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conquiet import DrainLimits
from conquiet.errors import QueueError, TopicError
from conquiet.mq import (
    ConsumerConfig,
    DeadLetter,
    DeadLetters,
    MqAdmin,
    MqCollector,
    Retry,
    TopicPolicies,
    Topics,
    drain_partition,
)
from conquiet.mq.own.leases import LeaseStore
from conquiet.operations import take_samples, topic_facts
from conquiet.queue import open_client
from tests.eventually import eventually
from tests.with_redis.mq.consuming import (
    GROUP,
    SOON,
    Seen,
    dead_letters,
    metric,
    pending,
    wait_until_finished,
)

#: Bytes that are no text.
ODD = b"worker-\xff\xfe"
SHOWN = "worker-\\xff\\xfe"

LATER = b'{"schemaVersion":2,"payload":{"n":"later"},"route":{"to":"eu"}}'
ENVELOPE = {"schemaVersion": 1, "id": "a", "key": "anna", "headers": {}, "attempt": 0, "newer": {"deep": [1]}}


def drained(topic, handler, *, idle_ms=50, **config):
    settings: dict[str, Any] = {"retry": SOON, "block_ms": 20} | config
    limits = DrainLimits(idle_ms=idle_ms)
    return drain_partition(topic, 0, GROUP, handler, limits=limits, config=ConsumerConfig(**settings))


def test_a_member_whose_name_is_not_utf8_ends_no_consumer_and_no_page(topic, send, start, client):
    client.zadd(topic.keys.members(GROUP), {ODD: 2**52, b"for-ever": float("inf")})
    send(1)
    seen = Seen()

    running = start(topic, seen)

    # Of three members the first one by name has the only partition.
    eventually(lambda: running.name.encode() in client.zrange(topic.keys.members(GROUP), 0, -1))
    names = [member.name for member in MqAdmin(client).owners(topic, GROUP).members]
    assert {SHOWN, "for-ever", running.name} <= set(names)
    client.zrem(topic.keys.members(GROUP), ODD, "for-ever")
    wait_until_finished(topic)
    assert running.is_running


def test_consumers_and_groups_whose_names_are_not_utf8_are_shown_with_backslashes(
    topic, send, client, server_url
):
    send(2)
    stream = topic.keys.stream(0)
    for group in (GROUP.encode(), b"group-\xff"):
        client.xgroup_create(stream, group, "0-0")
        client.xreadgroup(group, ODD, {stream: ">"}, count=1)

    for decodes in (False, True):
        with open_client(server_url, decode_responses=decodes) as other:
            admin, opened = MqAdmin(other), Topics(other).open(topic.name)
            figures = {one.group: (one.pending, one.lag, one.consumers) for one in admin.groups(opened)}
            assert figures == {GROUP: (1, 1, (SHOWN,)), "group-\\xff": (1, 1, (SHOWN,))}
            assert [entry.consumer for entry in admin.pending(opened, GROUP).entries] == [SHOWN]
            assert {group.name for group in topic_facts(other, opened).groups} == set(figures)
            assert {sample.group for sample in take_samples(other, [topic.name])} == set(figures)
            families = list(MqCollector(other, [opened]).collect())
            assert [family.samples[0].value for family in families if family.name == "conquiet_mq_up"] == [1]


def test_a_group_whose_name_is_not_utf8_is_neither_trimmed_over_nor_moved_by_the_name_it_is_shown_by(
    topic, send, client
):
    send(3)
    stream = topic.keys.stream(0)
    client.xgroup_create(stream, b"group-\xff", "0-0")
    client.xgroup_create(stream, GROUP, "$")

    (kept,) = MqAdmin(client).trim(topic, retention_length=0)
    with pytest.raises(TopicError, match="has no group"):
        MqAdmin(client).reset_group(topic, "group-\\xff", "end", dry_run=False)
    client.xgroup_setid(stream, b"group-\xff", "$")
    (trimmed,) = MqAdmin(client).trim(topic, retention_length=0)

    assert (kept.removed, kept.missing_groups, trimmed.removed) == (0, (), 2)


def test_a_live_member_whose_name_is_not_utf8_is_not_pruned(topic, client):
    stream = topic.keys.stream(0)
    client.xgroup_create(stream, GROUP, "0-0", mkstream=True)
    for name in (ODD, b"gone-\xff"):
        client.execute_command("XGROUP", "CREATECONSUMER", stream, GROUP, name)
    client.zadd(topic.keys.members(GROUP), {ODD: 2**52})

    pruned = MqAdmin(client).prune_consumers(topic, GROUP)

    assert [one.name for one in pruned] == ["gone-\\xff"]


def test_a_topic_whose_name_is_not_utf8_hides_no_other(topic, client):
    registry = "streaming:mq:topics:registry"
    client.sadd(registry, b"topic-\xff")
    try:
        assert topic.name in [one.name for one in MqAdmin(client).topics()]
        assert {"topic-\\xff", topic.name} <= set(Topics(client).names())
    finally:
        client.srem(registry, b"topic-\xff")


@pytest.mark.parametrize(
    "policies",
    [
        b'{"retention_length":1,"trim_every_s":1,"retention_bytes":5}',
        b'{"retention_length":"1k","trim_every_s":1}',
        b'{"trim_every_s":1}',
        b"[1]",
        b"\xff",
        b"not json",
        b"[" * 100_000,
    ],
)
def test_policies_of_a_later_version_end_no_consumer_and_trim_nothing(
    topic, send, start, client, policies, caplog
):
    TopicPolicies.read.cache_clear()
    client.hset(f"streaming:mq:topic:{topic.name}:meta", "policies", policies)
    ids = send(3)

    running = start(Topics(client).open(topic.name), Seen())

    wait_until_finished(topic)
    running.stop()
    assert running.error is None
    assert [entry.decode() for entry, _ in client.xrange(topic.keys.stream(0))] == ids
    assert "trims nothing by the policies" in caplog.text
    assert MqAdmin(client).topic(topic).length == 3


def test_unknown_fields_and_times_of_a_topics_meta_are_left_out(topic, client):
    meta = f"streaming:mq:topic:{topic.name}:meta"
    client.hset(meta, mapping={"newer": "x", "createdAt": "yesterday"})
    client.hdel(meta, "updatedAt", "schemaVersion")

    opened = Topics(client).open(topic.name)

    assert (opened.partition_count, opened.created_at_ms, opened.updated_at_ms) == (1, None, None)


@pytest.mark.parametrize("change", [{"layout": "sharded"}, {"schemaVersion": 2}, {"schemaVersion": "x"}])
def test_a_topic_of_a_later_layout_is_refused_before_a_wrong_key_is_read(topic, client, change):
    meta = f"streaming:mq:topic:{topic.name}:meta"
    before = client.hgetall(meta)
    client.hset(meta, mapping=change)
    try:
        with pytest.raises(QueueError, match="use the version that created it"):
            Topics(client).open(topic.name)
    finally:
        client.hset(meta, mapping=before)


@pytest.mark.parametrize("mode", ["in_place", "requeue"])
def test_unknown_fields_of_envelope_and_failure_record_are_carried_on(topic, client, mode):
    stream = topic.keys.stream(0)
    client.xadd(stream, {"data": json.dumps(ENVELOPE | {"payload": {"n": 1}})})
    attempts = []

    def fail(msg):
        attempts.append(msg.attempt)
        if msg.attempt == 1:
            return Retry(1)
        if msg.attempt == 2:
            raise ValueError("again")
        return DeadLetter("enough")

    def mark_failures():
        """As a later version would, between two attempts."""
        for entry_id, record in client.hgetall(topic.keys.failures(GROUP, 0)).items():
            client.hset(
                topic.keys.failures(GROUP, 0), entry_id, json.dumps(json.loads(record) | {"host": "a"})
            )
        for name, item in client.hgetall(topic.keys.delayed_items(0)).items():
            partition, _, data = item.partition(b":")
            envelope = json.loads(data)
            envelope["failure"]["host"] = "a"
            client.hset(topic.keys.delayed_items(0), name, partition + b":" + json.dumps(envelope).encode())

    drained(topic, lambda msg: Retry(60_000) if msg.attempt == 1 else None, retry_mode=mode)
    mark_failures()
    for key in (topic.keys.waiting(GROUP, 0), topic.keys.delayed(0)):
        for member in client.zrange(key, 0, -1):
            client.zadd(key, {member: 1})
    drained(topic, lambda _msg: Retry(60_000), retry_mode=mode)

    kept = [json.loads(one) for one in client.hvals(topic.keys.failures(GROUP, 0))]
    kept += [
        json.loads(one.partition(b":")[2])["failure"] for one in client.hvals(topic.keys.delayed_items(0))
    ]
    assert [one["host"] for one in kept] == ["a"]

    for key in (topic.keys.waiting(GROUP, 0), topic.keys.delayed(0)):
        for member in client.zrange(key, 0, -1):
            client.zadd(key, {member: 1})
    drained(topic, fail, retry_mode=mode)
    (letter,) = dead_letters(topic)
    assert (letter["envelope"]["newer"], letter["envelope"]["payload"]) == ({"deep": [1]}, {"n": 1})
    (listed,) = DeadLetters(topic).list().letters
    assert DeadLetters(topic).replay(listed.id) is not None
    (*_, (_, fields)) = client.xrange(stream)
    replayed = json.loads(fields[b"data"])
    assert (replayed["newer"], replayed["payload"], replayed["key"]) == ({"deep": [1]}, {"n": 1}, "anna")
    assert list(replayed)[-1] == "payload"


@pytest.mark.parametrize(
    "record",
    [b"\xff", b"not json", b"[1]", b'{"last_delay_ms": NaN}', b'{"last_delay_ms":"soon","error_type":5}'],
)
@pytest.mark.parametrize("mode", ["in_place", "requeue"])
def test_a_failure_record_that_cannot_be_read_fails_no_message(topic, send, client, record, mode):
    (entry_id,) = send(1)
    drained(topic, lambda _msg: Retry(60_000))
    client.hset(topic.keys.failures(GROUP, 0), entry_id, record)
    client.zadd(topic.keys.waiting(GROUP, 0), {entry_id: 1})

    assert drained(topic, lambda _msg: Retry(60_000), retry_mode=mode).retried == 1
    assert list(pending(topic)) == ([] if mode == "requeue" else [entry_id])
    assert dead_letters(topic) == []


def test_a_message_of_a_later_version_stays_pending_for_a_consumer_of_that_version(
    topic, send, start, client, caplog
):
    before = send(1)
    later = client.xadd(topic.keys.stream(0), {"data": LATER}).decode()
    after = send(1, start=1)
    seen = Seen()

    running = start(topic, seen)

    eventually(lambda: seen.ids == [*before, *after] and pending(topic).keys() == {later})
    # Not counted as a delivery: the consumer that can read it has all its attempts.
    eventually(lambda: pending(topic)[later][1] == 0)
    place = {"topic": topic.name, "partition": "0", "group": GROUP}
    assert metric("conquiet_mq_later_version_total", **place) == 1
    assert f"entry {later} of partition 0" in caplog.text
    assert "schema version 2, this conquiet reads up to 1" in caplog.text
    running.stop()
    report = drained(topic, seen)
    assert (report.read, report.handed_back, report.handled) == (1, 1, 0)
    assert pending(topic)[later][1] == 0
    assert seen.ids == [*before, *after]
    assert dead_letters(topic) == []


@pytest.mark.parametrize("ordering", ["default", "strict"])
def test_a_message_of_a_later_version_that_waits_for_its_retry_is_kept_with_its_attempts(
    topic, client, ordering
):
    stream = topic.keys.stream(0)
    later = client.xadd(stream, {"data": LATER}).decode()
    client.xgroup_create(stream, GROUP, "0-0")
    client.xreadgroup(GROUP, "newer", {stream: ">"})
    client.xclaim(stream, GROUP, "newer", 0, [later], retrycount=3, justid=True)
    client.zadd(topic.keys.waiting(GROUP, 0), {later: 1})
    client.hset(topic.keys.failures(GROUP, 0), later, '{"host":"a"}')

    report = drained(topic, Seen(), ordering=ordering)

    assert (report.read, report.handed_back) == (1, 1)
    assert pending(topic)[later][1] == 3
    assert client.hget(topic.keys.failures(GROUP, 0), later) == b'{"host":"a"}'


def test_a_dead_letter_of_a_later_version_is_listed_and_not_replayed(topic, client):
    letter = {
        "schemaVersion": 2,
        "topic": topic.name,
        "group": GROUP,
        "partition": 0,
        "attempts": "many",
        "originalMessageId": "1-0",
        "errorType": "Later",
        "errorMessage": "x",
        "newer": 1,
        "envelope": json.loads(LATER),
    }
    letter_id = client.xadd(topic.keys.dead_letters(0), {"data": json.dumps(letter)}).decode()
    letters = DeadLetters(topic)

    (listed,) = letters.list().letters

    assert (listed.group, listed.error_type, listed.attempts, listed.payload) == (GROUP, "Later", None, None)
    assert listed.raw_fields is not None
    assert json.loads(listed.raw_fields[0][1]) == json.loads(LATER)
    with pytest.raises(TopicError, match="schema version 2, this conquiet reads up to 1"):
        letters.replay(letter_id)
    assert letters.count() == 1


def test_what_waits_and_is_no_entry_delays_no_other(topic, send, client, caplog):
    (entry_id,) = send(1)
    drained(topic, lambda _msg: Retry(60_000))
    waiting = topic.keys.waiting(GROUP, 0)
    client.zadd(waiting, {entry_id: 3, b"\xff": 1, "9" * 30 + "-0": 1, "1-0:2": 2})
    seen = Seen()

    report = drained(topic, seen, idle_ms=1_500, batch_size=1)

    assert (report.handled, seen.ids) == (1, [entry_id])
    assert client.zcard(waiting) == 3
    assert "is no entry's id" in caplog.text


@pytest.mark.parametrize("ends", ["", "soon", None])
def test_a_lease_that_does_not_say_when_it_expires_is_nobodys(topic, send, client, start, ends):
    lease = topic.keys.lease(GROUP, 0)
    client.hset(lease, mapping={"owner": ODD, "epoch": "x", "newer": "y"})
    if ends is not None:
        client.hset(lease, "expiresAtMs", ends)
    send(1)
    seen = Seen()
    (owner,) = MqAdmin(client).owners(topic, GROUP).partitions
    assert owner.owner is None

    running = start(topic, seen)

    wait_until_finished(topic)
    assert running.is_running


def test_a_lease_with_unknown_fields_is_renewed_and_shown(topic, send, client, start):
    running = start(topic, Seen())
    eventually(lambda: running.consumer.owned == [0])
    client.hset(topic.keys.lease(GROUP, 0), mapping={"newer": b"\xff", "acquiredAtMs": "x"})
    send(1)

    wait_until_finished(topic)

    (owner,) = MqAdmin(client).owners(topic, GROUP).partitions
    assert (owner.owner, owner.since_ms) == (running.name, None)
    assert LeaseStore(topic, GROUP).acquire(0, "other", 1_000) is None
