"""The doctor: judgements over facts, and the facts of real servers."""

from __future__ import annotations

import dataclasses
import sqlite3

import pytest

from conquiet import EmbeddedServer, QueueConfig, RedisStreamsQueue
from conquiet.operations import (
    Finding,
    GroupFacts,
    Level,
    QueueFacts,
    ServerFacts,
    TopicFacts,
    diagnose,
    server_facts,
    topic_facts,
    worst_level,
)
from conquiet.queue import ConsumerBacklog, open_client
from tests.services import redis_binary, unavailable

HEALTHY = ServerFacts(
    address="h:1",
    product="Valkey",
    version="9.1.2",
    redis_version=(7, 2, 4),
    info={"role": "master", "maxmemory": 0, "used_memory": 1, "evicted_keys": 0, "aof_enabled": 1},
    config={"appendonly": "yes", "appendfsync": "always", "save": "", "maxmemory-policy": "noeviction"},
    clock_skew_ms=3,
)
WELL = GroupFacts(
    name="billing", pending=0, lag=0, oldest_pending_age_ms=None, oldest_undelivered_age_ms=None
)
TOPIC = TopicFacts(name="orders", length=10, dead_letters=0, has_retention=True, groups=(WELL,))


def server(**changes):
    config, info = changes.pop("config", {}), changes.pop("info", {})
    if config is not None:
        config = {**(HEALTHY.config or {}), **config}
    return dataclasses.replace(HEALTHY, config=config, info={**HEALTHY.info, **info}, **changes)


def found(*servers, topics=(), queues=()):
    findings = diagnose(servers, topics, (), queues)
    return {(one.check, one.level) for one in findings if one.level != "ok"}


def test_a_healthy_server_with_a_healthy_topic_has_nothing_to_do():
    findings = diagnose([HEALTHY], [TOPIC])

    assert worst_level(findings) == "ok"
    assert [finding.to_do for finding in findings] == [None] * len(findings)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (server(redis_version=(6, 0, 9)), ("version", "error")),
        (server(redis_version=(6, 2, 14)), ("version", "note")),
        (server(missing_commands=("XCLAIM",)), ("commands", "error")),
        (server(missing_commands=None), ("commands", "note")),
        (server(config={"appendonly": "no", "save": ""}), ("persistence", "error")),
        (server(config={"appendonly": "no", "save": "3600 1"}), ("persistence", "error")),
        (server(config={"appendfsync": "no"}), ("persistence", "warning")),
        (server(config={"appendfsync": "everysec"}), ("persistence", "note")),
        (server(config=None, config_refusal="by ACL"), ("persistence", "note")),
        (server(config=None, config_refusal="by ACL", info={"aof_enabled": 0}), ("persistence", "warning")),
        (server(info={"aof_last_write_status": "err"}), ("persistence", "error")),
        (server(info={"rdb_last_bgsave_status": "err"}), ("persistence", "error")),
        (server(config={"maxmemory-policy": "allkeys-lru"}), ("eviction", "warning")),
        (server(config={"maxmemory-policy": "volatile-ttl"}, info={"maxmemory": 9}), ("eviction", "error")),
        (
            server(config=None, info={"maxmemory_policy": "allkeys-lru", "maxmemory": 9}),
            ("eviction", "error"),
        ),
        (server(info={"evicted_keys": 4}), ("eviction", "error")),
        (server(info={"maxmemory": 100, "used_memory": 95}), ("memory", "warning")),
        (server(info={"role": "slave"}), ("replication", "error")),
        (server(clock_skew_ms=-2_500), ("clock", "warning")),
        (server(clock_skew_ms=120_000), ("clock", "error")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_wrong_with_a_server_is_found_with_what_to_do(facts, expected):
    findings = [one for one in diagnose([facts]) if (one.check, one.level) == expected]

    assert findings
    assert all(one.to_do for one in findings if one.level in ("warning", "error"))


def test_a_slow_link_is_not_taken_for_a_wrong_clock():
    assert found(server(clock_skew_ms=1_900, clock_error_ms=1_000)) == set()


MINUTE = 60_000


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (
            {"consumers": (ConsumerBacklog(name="dead", pending=3, idle_ms=10 * MINUTE),)},
            ("dead-consumer", "warning"),
        ),
        ({"oldest_pending_age_ms": 120 * MINUTE}, ("old-pending", "warning")),
        ({"lag": None}, ("lag", "warning")),
        ({"lag": 5}, ("lag", "warning")),
        (
            {
                "consumers": tuple(
                    ConsumerBacklog(name=str(n), pending=0, idle_ms=10 * MINUTE) for n in range(20)
                )
            },
            ("consumers", "note"),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_wrong_with_a_group_is_found(group, expected):
    topic = dataclasses.replace(TOPIC, groups=(dataclasses.replace(WELL, **group),))

    assert found(HEALTHY, topics=[topic]) == {expected}


@pytest.mark.parametrize("idle_ms", [1, 10 * MINUTE])
def test_a_consumer_that_lives_is_not_dead_however_silent(idle_ms):
    busy = dataclasses.replace(
        WELL, consumers=(ConsumerBacklog(name="anna", pending=1, idle_ms=idle_ms),), live=frozenset({"anna"})
    )

    assert found(HEALTHY, topics=[dataclasses.replace(TOPIC, groups=(busy,))]) == set()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"dead_letters": 2}, ("dead-letters", "warning")),
        ({"groups": ()}, ("groups", "note")),
        ({"length": 500_000, "has_retention": False}, ("retention", "warning")),
    ],
)
def test_what_is_wrong_with_a_topic_is_found(changes, expected):
    assert found(HEALTHY, topics=[dataclasses.replace(TOPIC, **changes)]) == {expected}


BUSY = QueueFacts(name="mail", queued=3, in_flight=1, delayed=2, consumers=1)
DEAD = ConsumerBacklog(name="w.1.0.1", pending=2, idle_ms=2 * MINUTE)


def test_a_queue_that_gets_on_has_nothing_to_do():
    findings = diagnose([HEALTHY], queues=[BUSY])

    assert [(one.level, one.text) for one in findings if one.subject == "queue mail"] == [
        ("ok", "6 tasks, 1 consumers, all well")
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"dead_letters": 2}, {("dead-letters", "warning")}),
        ({"is_paused": True}, {("paused", "warning")}),
        ({"is_paused": True, "queued": 0, "in_flight": 0, "delayed": 0}, {("paused", "note")}),
        ({"consumers": 0}, {("workers", "warning")}),
        ({"consumers": 0, "queued": 0, "in_flight": 0, "delayed": 0}, set()),
        ({"dead_consumers": (DEAD,)}, {("dead-worker", "warning")}),
        ({"dead_consumers": (dataclasses.replace(DEAD, idle_ms=5_000),)}, set()),
        (
            {"dead_consumers": (dataclasses.replace(DEAD, idle_ms=5_000),), "consumers": 0},
            {("dead-worker", "warning"), ("workers", "warning")},
        ),
        ({"overdue": 1, "overdue_ms": 5_000}, set()),
        ({"overdue": 1, "overdue_ms": 2 * MINUTE}, {("overdue", "warning")}),
        ({"left_follow_ups": 1}, {("follow-ups", "warning")}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_what_is_wrong_with_a_queue_of_tasks_is_found(changes, expected):
    queue = dataclasses.replace(BUSY, **changes)

    assert found(HEALTHY, queues=[queue]) == expected
    assert all(one.to_do for one in diagnose([HEALTHY], queues=[queue]) if one.level == "warning")


def test_the_worst_finding_decides():
    levels: list[Level] = ["ok", "warning", "note"]

    assert (
        worst_level(Finding(level=level, check="x", subject="y", text="z") for level in levels) == "warning"
    )
    assert worst_level([]) == "ok"


# On real servers


def test_facts_of_each_kind_of_server(run_on_each, client, server_url, stream):
    run_on_each("enqueue", stream, '{"n": 1}')

    with open_client(server_url) as opened:
        (facts,) = server_facts(opened)

    assert facts.product in ("Redis", "Valkey")
    assert facts.redis_version >= (6, 2)
    assert facts.missing_commands == ()
    assert facts.config is not None
    assert facts.config["maxmemory-policy"] == "noeviction"
    assert abs(facts.clock_skew_ms) < 1_000


@pytest.mark.parametrize(
    ("args", "code", "worst"),
    [
        (["--appendonly", "yes", "--appendfsync", "always"], 0, "ok"),
        (["--appendonly", "yes", "--appendfsync", "no"], 8, "warning"),
        (["--appendonly", "no"], 1, "error"),
        (["--appendonly", "yes", "--maxmemory-policy", "allkeys-lru", "--maxmemory", "100mb"], 1, "error"),
    ],
)
def test_the_exit_code_is_that_of_the_worst_finding(anywhere, args, code, worst):
    with EmbeddedServer(args=args) as server:
        ran = anywhere("doctor", "--url", server.url, "--json")

    assert (ran.code, ran.json["worst"]) == (code, worst)


@pytest.mark.parametrize("kind", ["valkey", "redis7", "redis62"])
def test_where_config_is_forbidden_the_doctor_says_so_and_goes_on(anywhere, kind):
    binary = redis_binary(kind)
    if binary is None:
        unavailable("redis", f"no binary for {kind}")
    rules = ["on", ">tr0ub4dor", "~*", "+@all", "-config", "-command"]
    with EmbeddedServer(binary=binary, appendonly=True) as server, open_client(server.url) as admin:
        admin.execute_command("ACL", "SETUSER", "guest", *rules)

        ran = anywhere("doctor", "--url", f"redis://guest:tr0ub4dor@127.0.0.1:{server.port}/0", "--json")

    assert ran.code == 0, ran.err
    assert ran.json["url"] == f"redis://guest:***@127.0.0.1:{server.port}/0"
    texts = " ".join(finding["text"] for finding in ran.json["findings"])
    assert "CONFIG is not allowed (by ACL)" in texts
    assert "COMMAND is forbidden by ACL" in texts


def test_a_dead_consumer_is_found_among_living_ones(run, stream, valkey, valkey_url):
    run("enqueue", stream, typed='{"n": 1}\n{"n": 2}\n')
    with RedisStreamsQueue.from_url(valkey_url, QueueConfig(stream, "billing", "dead")) as queue:
        queue.read(50)
    facts = topic_facts(valkey, stream)
    ((consumer,),) = [group.consumers for group in facts.groups]
    long_ago = dataclasses.replace(consumer, idle_ms=10 * MINUTE)
    aged = dataclasses.replace(facts, groups=(dataclasses.replace(facts.groups[0], consumers=(long_ago,)),))

    assert found(HEALTHY, topics=[facts]) == set()
    (finding,) = [one for one in diagnose([HEALTHY], [aged]) if one.check == "dead-consumer"]
    assert "dead has 1 messages pending" in finding.text
    assert f"conquiet claim-stale {stream} --group billing" in str(finding.to_do)


def test_every_primary_of_a_cluster_is_looked_at(anywhere):
    with EmbeddedServer(cluster=3) as server:
        ran = anywhere("doctor", "--url", server.url, "--json")

    subjects = {finding["subject"] for finding in ran.json["findings"] if finding["check"] == "version"}
    assert subjects == {f"127.0.0.1:{port}" for port in server.ports}


def test_the_doctor_checks_the_database_of_the_handlers(anywhere, tmp_path):
    database = tmp_path / "orders.db"
    sqlite3.connect(database).close()
    with EmbeddedServer() as server:
        read_write = anywhere("doctor", "--url", server.url, "--database", f"sqlite:///{database}", "--json")
        url = f"sqlite:///file:{database}?mode=ro&uri=true"
        read_only = anywhere("doctor", "--url", server.url, "--database", url, "--json")

    levels = [
        next(finding["level"] for finding in ran.json["findings"] if finding["check"] == "database")
        for ran in (read_write, read_only)
    ]
    assert levels == ["ok", "error"]
