"""RedisStreamsHook: what a connection means, and what the hook makes of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import ResourceClosedError

from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from conquiet import DrainLimits, EmbeddedServer, QueueError, drain
from conquiet.mq import Message, Topics, drain_partition
from conquiet.queue import open_client
from tests.cli import roles
from tests.cli.test_rights import LINES
from tests.services import free_port


def test_queue_topic_enqueue_backlog_and_claim_work_over_one_client(airflow_connection, stream, topic_name):
    with RedisStreamsHook() as hook:
        ids = hook.enqueue(stream, [{"number": 1}, {"number": 2}])
        hook.queue(stream, "billing", "dead").read(1)
        claimed = hook.claim_stale(stream, "billing", "alive", min_idle_ms=0)
        backlog = hook.backlog(stream, "billing")
        topic = Topics(hook.get_conn()).create(topic_name, partitions=2)

        assert [msg.id for msg in claimed] == ids[:1]
        assert (backlog.lag, backlog.pending) == (1, 1)
        assert hook.partitions(topic_name) == hook.partitions(topic) == [0, 1]
        assert len(hook.send(topic, [Message(payload={"number": 3})])) == 1
        assert hook.get_conn() is hook.get_conn()


def test_a_dedupe_id_enqueues_once(airflow_connection, stream):
    with RedisStreamsHook() as hook:
        first = hook.enqueue(stream, [{"number": 1}], dedupe_id="once")
        second = hook.enqueue(stream, [{"number": 1}, {"number": 2}], dedupe_id="once")

        assert second[0] == first[0]
        assert hook.backlog(stream, "billing").lag == 2


def test_an_asyncio_client_is_the_callers_to_close(airflow_connection):
    async def ping() -> bool:
        client = await RedisStreamsHook().get_async_conn()
        try:
            return bool(await client.ping())
        finally:
            await client.aclose()

    assert asyncio.run(ping())


def test_the_engine_ends_with_its_block(airflow_connection):
    with RedisStreamsHook().engine() as engine:
        connection = engine.connect()
        assert connection.scalar(text("SELECT 1")) == 1
        connection.close()

    pool: Any = engine.pool
    assert pool.checkedin() == 0
    with pytest.raises(ResourceClosedError):
        connection.execute(text("SELECT 1"))


def test_a_server_that_is_unavailable_is_a_queue_error(airflow_connection, monkeypatch, stream):
    fields = airflow_connection | {"port": free_port()}
    monkeypatch.setenv("AIRFLOW_CONN_REDIS_STREAMS_DEFAULT", json.dumps(fields))

    with RedisStreamsHook() as hook, pytest.raises(QueueError):
        hook.enqueue(stream, [{}])


def test_lineage_knows_what_was_written_and_read(airflow_connection, stream, monkeypatch):
    from airflow.sdk import lineage

    collector = lineage.HookLineageCollector()
    monkeypatch.setattr(
        "airflow_provider_conquiet.hooks.redis_streams.get_hook_lineage_collector", lambda: collector
    )
    with RedisStreamsHook() as hook:
        hook.enqueue(stream, [{"number": 1}])
        hook.record_input(stream)

        uri = f"redis+stream://127.0.0.1:{airflow_connection['port']}/{stream}"
        assert [output.asset.uri for output in collector.collected_assets.outputs] == [uri]
        assert [read.asset.uri for read in collector.collected_assets.inputs] == [uri]


def test_the_users_of_the_security_page_are_enough_for_the_work_of_tasks(monkeypatch, engine):
    """Each role's connection has its own line of docs/security.md, and nothing else."""
    extra = {"db_url": engine.url.render_as_string(hide_password=False)}

    def handle(msg, _session):
        handled.append(msg.payload["n"])

    handled: list[int] = []
    with EmbeddedServer() as server, open_client(server.url) as everything:
        Topics(everything).create(roles.TOPIC, 2)
        fields = {"conn_type": "redis_streams", "host": "127.0.0.1", "port": server.port, "extra": extra}
        for role, rules in LINES.items():
            everything.execute_command("ACL", "SETUSER", role, "reset", "on", *rules.split())
            connection = json.dumps(fields | {"login": role, "password": "PASSWORD"})
            monkeypatch.setenv(f"AIRFLOW_CONN_{role.replace('-', '_').upper()}", connection)

        with RedisStreamsHook("stream_producer") as hook:
            assert len(hook.enqueue(roles.STREAM, [{"n": 1}, {"n": 2}], dedupe_id="run")) == 2
        with RedisStreamsHook("stream_consumer") as hook, hook.engine() as database:
            queue = hook.queue(roles.STREAM, roles.GROUP, "worker-1", block_ms=20)
            assert drain(queue, handle, database, DrainLimits(idle_ms=50)).handled == 2
            assert hook.backlog(roles.STREAM, roles.GROUP).pending == 0
        with RedisStreamsHook("mq_producer") as hook:
            messages = [Message(payload={"n": n}, partition=n % 2) for n in (3, 4)]
            assert len(hook.send(roles.TOPIC, messages, dedupe_id="run")) == 2
        with RedisStreamsHook("mq_consumer") as hook, hook.engine() as database:
            for partition in hook.partitions(roles.TOPIC):
                limits = DrainLimits(idle_ms=50)
                drain_partition(hook.topic(roles.TOPIC), partition, roles.GROUP, handle, database, limits)

    assert sorted(handled) == [1, 2, 3, 4]
