"""Every way to name a server: TLS with client certificates, ACL users, unix sockets, Sentinel, Cluster."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from conquiet import EmbeddedServer, QueueConfig, QueueError, RedisStreamsQueue
from conquiet.queue import open_client
from tests.eventually import HANG_S, eventually
from tests.services import free_port, redis_binary, unavailable
from tests.tls import tls_server

CONFIG = QueueConfig("orders", "billing", "worker-1", block_ms=50)


def round_trip(url: str, config: QueueConfig = CONFIG) -> None:
    with RedisStreamsQueue.from_url(url, config) as queue:
        entry_id = queue.enqueue({"n": 1})
        (msg,) = queue.read(50)
        assert msg.id == entry_id
        queue.ack(msg)
        assert queue.backlog_stats().pending == 0


@pytest.mark.parametrize("url", ["http://127.0.0.1", "127.0.0.1:6379", "", "redis+tcp://:secret@127.0.0.1"])
def test_another_scheme_is_refused_without_telling_the_password(url):
    with pytest.raises(ValueError, match="url must start with redis://") as caught:
        open_client(url)

    assert "secret" not in str(caught.value)


def test_a_unix_socket(tmp_path):
    path = tmp_path / "redis.sock"
    with EmbeddedServer(args=["--unixsocket", str(path)]):
        round_trip(f"unix://{path}")


def test_an_acl_user_and_its_password():
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as admin:
        admin.acl_setuser(
            "worker", enabled=True, passwords=["+s3cret%/"], keys=["orders"], commands=["+@all"]
        )
        admin.acl_setuser(
            "nobody", enabled=True, passwords=["+n0thing-at-all"], keys=["orders"], commands=["-@all"]
        )
        address = f"127.0.0.1:{server.port}/0"

        round_trip(f"redis://worker:s3cret%25%2F@{address}")
        with pytest.raises(QueueError, match=r"WRONGPASS|AuthenticationError"):
            RedisStreamsQueue.from_url(f"redis://worker:wrong@{address}", CONFIG)
        with pytest.raises(QueueError, match=r"NoPermission|NOPERM"):
            RedisStreamsQueue.from_url(f"redis://nobody:n0thing-at-all@{address}", CONFIG)


def test_a_server_that_wants_a_password_and_gets_none_is_visible():
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as admin:
        admin.config_set("requirepass", "s3cret")

        with pytest.raises(QueueError, match=r"NOAUTH|AuthenticationError") as caught:
            RedisStreamsQueue.from_url(server.url, CONFIG)

        assert isinstance(caught.value.__cause__, redis.RedisError)
        admin.execute_command("AUTH", "s3cret")
        admin.config_set("requirepass", "")


def test_a_server_that_is_still_loading_is_visible(tmp_path):
    with EmbeddedServer(dir=tmp_path, appendonly=True) as server:
        with redis.Redis.from_url(server.url) as admin, admin.pipeline(transaction=False) as pipeline:
            for n in range(20_000):
                pipeline.set(f"key-{n}", "x" * 100)
            pipeline.execute()
        binary = str(server.binary)
    port = free_port()
    slow_load = ["--key-load-delay", "200", "--loading-process-events-interval-bytes", "1024"]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(tmp_path), "--appendonly", "yes"]
    process = subprocess.Popen([binary, *options, "--save", "", *slow_load], stdout=subprocess.DEVNULL)

    def cause() -> BaseException | None:
        with pytest.raises(QueueError) as caught:
            RedisStreamsQueue.from_url(f"redis://127.0.0.1:{port}", CONFIG)
        return caught.value.__cause__

    try:
        assert eventually(lambda: isinstance(cause(), redis.BusyLoadingError))
    finally:
        process.kill()
        process.wait()


# TLS


@pytest.fixture
def tls_port(tmp_path):
    with tls_server(tmp_path) as port:
        yield port


def test_tls_with_a_client_certificate(tls_port, tmp_path):
    port, directory = tls_port, tmp_path
    client_files = f"ssl_certfile={directory}/client.crt&ssl_keyfile={directory}/client.key"

    round_trip(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={directory}/ca.crt&{client_files}")


def test_tls_without_the_client_certificate_or_with_an_unknown_authority_is_visible(tls_port, tmp_path):
    port, directory = tls_port, tmp_path
    no_certificate = f"ssl_ca_certs={directory}/ca.crt"
    unknown_authority = f"ssl_certfile={directory}/client.crt&ssl_keyfile={directory}/client.key"

    for query in (no_certificate, unknown_authority):
        with pytest.raises(QueueError) as caught:
            RedisStreamsQueue.from_url(f"rediss://127.0.0.1:{port}/0?{query}", CONFIG)

        assert isinstance(caught.value.__cause__, redis.ConnectionError)


# Sentinel


@pytest.fixture
def sentinel(tmp_path):
    """A primary, a replica and one sentinel that watches them; yields the sentinel's port and the servers."""
    binary = redis_binary("redis7")
    if binary is None:
        unavailable("redis", "no redis-server to run as a sentinel")
    with EmbeddedServer(binary=binary) as primary:
        following = ["--replicaof", "127.0.0.1", str(primary.port)]
        with (
            EmbeddedServer(binary=binary, args=following) as replica,
            running_sentinel(tmp_path, primary) as port,
        ):
            yield port, primary, replica


@contextmanager
def running_sentinel(directory, primary):
    port = free_port()
    config = directory / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {directory}\n"
        f"sentinel monitor orders-service 127.0.0.1 {primary.port} 1\n"
        "sentinel down-after-milliseconds orders-service 500\n"
        "sentinel failover-timeout orders-service 3000\n"
    )
    command = [str(primary.binary), str(config), "--sentinel"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        with redis.Redis(port=port) as watcher:
            eventually(lambda: knows_replica(watcher))
        yield port
    finally:
        process.terminate()
        process.wait(timeout=HANG_S)


def knows_replica(watcher: redis.Redis) -> bool:
    try:
        state: Any = watcher.sentinel_master("orders-service")
    except redis.RedisError:
        return False
    return state["num-slaves"] >= 1


def test_sentinel_finds_the_primary_and_after_a_failover_the_new_one(sentinel):
    port, primary, replica = sentinel
    url = f"redis+sentinel://127.0.0.1:{port},127.0.0.1:1/orders-service/0"
    with RedisStreamsQueue.from_url(url, CONFIG) as queue:
        queue.enqueue({"n": 1})
        with redis.Redis.from_url(replica.url) as follower:
            eventually(lambda: follower.xlen("orders") == 1)
        primary.kill()

        with pytest.raises(QueueError):
            queue.read(50)

        def reads_from_the_new_primary() -> bool:
            try:
                return bool(queue.read(50))
            except QueueError:
                return False

        eventually(reads_from_the_new_primary)
    with pytest.raises(QueueError, match="it is closed"):
        queue.enqueue({"n": 2})


def test_a_sentinel_that_does_not_know_the_service_is_visible(sentinel):
    port, _, _ = sentinel

    with pytest.raises(QueueError, match="no-such-service"):
        RedisStreamsQueue.from_url(f"redis+sentinel://127.0.0.1:{port}/no-such-service", CONFIG)


@pytest.mark.parametrize("url", ["redis+sentinel:///service", "redis+sentinel://127.0.0.1:26379"])
def test_a_sentinel_url_without_hosts_or_service_is_refused(url):
    with pytest.raises(ValueError, match="must name hosts and service"):
        open_client(url)
