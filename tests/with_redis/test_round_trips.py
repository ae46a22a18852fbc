"""Calls that go past redis-py's `execute_command`, and the pool that they take their connections from."""

from __future__ import annotations

import threading

import pytest
import redis

from conquiet import QueueConfig, QueueError, RedisStreamsQueue
from conquiet.queue import open_client
from conquiet.queue.round_trip import execute_unparsed


@pytest.fixture
def opened(server_url):
    with open_client(server_url) as opened:
        yield opened


def connection_of(opened: redis.Redis) -> int:
    return opened.client_id()


def test_a_connection_that_the_server_has_closed_is_replaced_before_the_next_call(opened, client, stream):
    before = connection_of(opened)
    client.client_kill_filter(_id=before)

    entry_id = execute_unparsed(opened, "XADD", stream, "*", "data", b"{}")

    assert [one for one, _ in client.xrange(stream)] == [entry_id]
    assert connection_of(opened) != before


def test_one_connection_is_used_again_and_again_and_two_threads_have_one_each(opened, stream):
    ids = {connection_of(opened) for _ in range(5)}
    both_have_one, others = threading.Barrier(2, timeout=60), []

    def hold_one() -> None:
        connection = opened.connection_pool.get_connection()
        both_have_one.wait()
        others.append(connection)
        opened.connection_pool.release(connection)

    threads = [threading.Thread(target=hold_one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(ids) == 1
    assert len(set(others)) == 2


def test_an_error_of_the_server_leaves_the_connection_in_use(opened, stream):
    before = connection_of(opened)

    with pytest.raises(redis.ResponseError):
        execute_unparsed(opened, "XADD", stream, "0-0", "data", b"{}")

    assert connection_of(opened) == before


def test_an_interrupted_call_leaves_no_reply_to_the_next_one(opened, monkeypatch):
    connection = opened.connection_pool.get_connection()
    opened.connection_pool.release(connection)

    def interrupted(*_args, **_options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(connection, "read_response", interrupted)
        with pytest.raises(KeyboardInterrupt):
            execute_unparsed(opened, "ECHO", "first")

    assert execute_unparsed(opened, "ECHO", "second") == b"second"


def test_a_tool_that_wraps_every_command_sees_these_calls_too(opened, stream, monkeypatch):
    execute, seen = redis.Redis.execute_command, []

    def traced(client, *command, **options):
        seen.append(command[0])
        return execute(client, *command, **options)

    monkeypatch.setattr(redis.Redis, "execute_command", traced)
    execute_unparsed(opened, "ECHO", "seen")

    assert seen == ["ECHO"]


def test_a_client_keeps_its_retries(server_url, stream, client):
    attempts = []

    class Unsteady(redis.Connection):
        def send_packed_command(self, command, check_health=True):
            if b"XADD" in b"".join(command):
                attempts.append(command)
                if len(attempts) == 1:
                    raise redis.ConnectionError("lost")
            super().send_packed_command(command, check_health)

    for retries, fails in ((1, False), (0, True)):
        attempts.clear()
        retry = redis.retry.Retry(redis.backoff.NoBackoff(), retries)
        pool = redis.ConnectionPool.from_url(server_url, connection_class=Unsteady, retry=retry)
        with redis.Redis(connection_pool=pool) as handed_in:
            queue = RedisStreamsQueue(handed_in, QueueConfig(stream, "billing", "worker-1"))
            if fails:
                with pytest.raises(QueueError, match="lost"):
                    queue.enqueue({})
            else:
                queue.enqueue({})
        pool.disconnect()

    assert client.xlen(stream) == 1
