"""SampleRing and AuditLog: bounded streams that several processes write."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import redis

from conquiet.errors import QueueError
from conquiet.operations import AuditEntry, AuditLog, Sample, SampleRing
from conquiet.operations.audit import AUDIT_KEY
from conquiet.operations.samples import EVERY_MS, KEPT, samples_key

NOW = 1_800_000_000_000 // EVERY_MS * EVERY_MS


def sample(topic: str, at_ms: int = NOW, lag: int | None = 3) -> Sample:
    return Sample(
        topic=topic, group="billing", at_ms=at_ms, length=10, added=100, lag=lag, pending=2, dead_letters=1
    )


def test_samples_come_back_as_they_were_written(client, stream):
    ring = SampleRing(client)
    first = [sample(stream), replace(sample(stream, lag=None), group="audit")]
    second = [sample(stream, NOW + EVERY_MS, lag=0)]

    assert ring.write(first) == ring.write(second) == 1

    assert ring.read(stream) == first + second
    assert ring.last([stream, f"{stream}:none"], count=1) == {stream: second, f"{stream}:none": []}
    assert ring.write([]) == 0


def test_of_several_processes_one_keeps_the_sample_of_a_span_of_time(client, stream):
    written = [
        SampleRing(client).write([sample(stream, NOW + offset)]) for offset in (0, 1, EVERY_MS - 1, EVERY_MS)
    ]

    assert written == [1, 0, 0, 1]
    assert [one.at_ms for one in SampleRing(client).read(stream)] == [NOW, NOW + EVERY_MS]


def test_the_ring_is_bounded_and_expires(client, stream):
    ring = SampleRing(client)
    for number in range(KEPT + 300):
        ring.write([sample(stream, NOW + number * EVERY_MS)])

    # Redis trims whole nodes of a stream, of 100 entries.
    assert client.xlen(samples_key(stream)) <= KEPT + 100
    assert len(ring.read(stream)) == KEPT
    assert 0 < client.pttl(samples_key(stream)) <= 86_400_000


def test_what_another_program_wrote_is_left_out(client, stream):
    client.xadd(samples_key(stream), {"data": "no json"}, id="1-1")
    client.xadd(samples_key(stream), {"data": json.dumps({"groups": [{"at_ms": "x"}]})}, id="2-1")
    SampleRing(client).write([sample(stream)])

    assert SampleRing(client).read(stream) == [sample(stream)]


def test_a_key_of_another_type_is_an_error(client, stream):
    client.set(samples_key(stream), "text")

    with pytest.raises(QueueError, match="WRONGTYPE"):
        SampleRing(client).write([sample(stream)])


def test_audit_entries_come_back_the_newest_first(client):
    log = AuditLog(client)
    entry = AuditEntry(
        user="ann", action="replay", subject="orders", outcome="begun", command="conquiet dlq …"
    )
    began = log.write(entry)
    assert log.last_step(began) == log.last(1)[0]
    ended = log.write(replace(entry, outcome="done", count=3, detail="Replayed 3.", began=began))

    last, first = log.last(2)

    assert (first.id, last.id, last.began) == (began, ended, began)
    assert (last.user, last.count, last.outcome, last.detail) == ("ann", 3, "done", "Replayed 3.")
    assert log.last(1, before=ended)[0].id == began
    assert log.last_step(began) == last
    assert log.last_step(ended) == last
    assert log.last_step("1-1") is None
    assert first.at_ms > 0


def test_an_audit_entry_of_another_program_is_shown_as_far_as_it_can_be_read(client):
    client.xadd(AUDIT_KEY, {"other": "fields"})
    client.xadd(AUDIT_KEY, {"data": json.dumps({"user": "eve", "outcome": "odd", "count": "many"})})

    second, first = AuditLog(client).last(2)

    assert (first.user, second.user, second.outcome, second.count) == ("", "eve", "failed", None)


def test_who_may_not_write_them_is_told(client, server_url, stream):
    client.execute_command(
        "ACL", "SETUSER", "reader", "on", ">reader-password", "~*", "+@read", "+@connection"
    )
    url = server_url.replace("redis://", "redis://reader:reader-password@")

    with redis.Redis.from_url(url) as reader:
        with pytest.raises(QueueError, match="NoPermission"):
            SampleRing(reader).write([sample(stream)])
        with pytest.raises(QueueError, match="NoPermission"):
            AuditLog(reader).write(AuditEntry(user="ann", action="a", subject="s", outcome="begun"))
    client.execute_command("ACL", "DELUSER", "reader")
