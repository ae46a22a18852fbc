"""Retention of dead letters: never by default, by the topic's policy or when asked, counted and logged."""

from __future__ import annotations

import json
import logging

import pytest

from conquiet.mq import DeadLetter, DeadLetterPolicy, DeadLetters, TopicError, TopicPolicies, Topics
from tests.eventually import eventually
from tests.with_redis.mq.consuming import GROUP, Seen, metric, quick, wait_until_finished


def add_letters(topic, count, *, age_ms=0):
    """Dead letters of so long ago."""
    now = int(topic.client.time()[0]) * 1000
    letter = json.dumps({"group": GROUP, "partition": 0, "errorType": "NoStock"})
    for number in range(count):
        topic.client.xadd(topic.keys.dead_letters(0), {"data": letter}, id=f"{now - age_ms}-{number + 1}")


def test_no_dead_letter_is_deleted_without_a_policy(topics, topic, start, send):
    topics.change_policies(topic.name, TopicPolicies(retention_length=1, trim_every_s=1))
    add_letters(topic, 20, age_ms=10**10)
    send(10)
    start(topics.open(topic.name), Seen())
    wait_until_finished(topic)
    eventually(lambda: topic.client.xlen(topic.keys.stream(0)) == 1)

    assert DeadLetters(topic).count() == 20
    with pytest.raises(TopicError, match="no DeadLetterPolicy"):
        DeadLetters(topic).trim()


def test_consumers_delete_by_the_policy_count_and_log_it(topics, wide, start, caplog):
    caplog.set_level(logging.WARNING)
    policy = DeadLetterPolicy(retention_ms=60_000)
    opened = topics.change_policies(wide.name, TopicPolicies(dead_letters=policy, trim_every_s=1))
    assert opened.policies.dead_letters == policy
    add_letters(opened, 150, age_ms=120_000)
    add_letters(opened, 3)

    start(opened, lambda _msg: DeadLetter("no"))
    eventually(lambda: DeadLetters(wide).count() == 3)

    eventually(lambda: "150 dead letters of topic" in caplog.text)
    assert metric("conquiet_mq_dead_letters_trimmed_total", topic=wide.name) == 150


def test_what_either_of_the_two_keeps_is_kept(topic):
    add_letters(topic, 8, age_ms=120_000)
    add_letters(topic, 2)
    letters = DeadLetters(topic)

    assert letters.trim(DeadLetterPolicy(retention_length=5, retention_ms=60_000), dry_run=True) == 5
    assert letters.count() == 10
    assert letters.trim(DeadLetterPolicy(retention_length=5, retention_ms=60_000)) == 5
    assert letters.trim(DeadLetterPolicy(retention_ms=60_000)) == 3
    assert letters.trim(DeadLetterPolicy(retention_length=1)) == 1
    assert letters.count() == 1


def test_dead_letters_of_a_plain_stream_are_trimmed_when_asked(client, stream):
    client.xadd(stream, {"data": b"{}"})
    plain = Topics(client).open(stream)
    add_letters(plain, 30)

    assert DeadLetters(plain).trim(DeadLetterPolicy(retention_length=10)) == 20
    assert DeadLetters(plain).count() == 10


def test_what_a_reader_of_the_dead_letters_has_not_finished_is_kept(topic):
    add_letters(topic, 10)
    stream = topic.keys.dead_letters(0)
    topic.client.xgroup_create(stream, "triage", "0")
    topic.client.xreadgroup("triage", "anna", {stream: ">"}, count=4)

    assert DeadLetters(topic).trim(DeadLetterPolicy(retention_length=1)) == 0


def test_the_policy_of_a_full_server_is_applied(topic, client):
    add_letters(topic, 300)
    before = client.config_get("maxmemory")["maxmemory"]
    client.config_set("maxmemory", 1)
    try:
        assert DeadLetters(topic).trim(DeadLetterPolicy(retention_length=1)) == 299
    finally:
        client.config_set("maxmemory", before)


@pytest.mark.parametrize(
    "values", [{}, {"retention_length": 0}, {"retention_ms": "5"}, {"retention_ms": True}]
)
def test_a_policy_that_says_nothing_or_something_odd_is_refused(values):
    with pytest.raises((TypeError, ValueError)):
        DeadLetterPolicy(**values)
    with pytest.raises(TypeError):
        TopicPolicies(dead_letters={"retention_ms": 5})  # type: ignore[arg-type]


def test_a_policy_with_an_unknown_field_deletes_nothing(topic, client, start):
    TopicPolicies.read.cache_clear()
    add_letters(topic, 10, age_ms=10**9)
    text = json.dumps({"dead_letters": {"retention_ms": 1, "only_of": "NoStock"}, "trim_every_s": 1})
    client.hset(f"streaming:mq:topic:{topic.name}:meta", "policies", text)

    assert Topics(client).open(topic.name).policies == TopicPolicies()
    running = start(topic, Seen(), config=quick())
    eventually(lambda: running.consumer.owned == [0])
    assert DeadLetters(topic).count() == 10
