"""A server that cannot be reached, or does not let the client in: one sentence says what to change."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from conquiet import (
    EmbeddedServer,
    NoConnectionError,
    QueueConfig,
    QueueError,
    RedisStreamsQueue,
)
from conquiet.mq import Topics
from conquiet.queue import open_client
from tests.services import free_port
from tests.tls import tls_server

CONFIG = QueueConfig("orders", "billing", "worker-1", block_ms=50)


def refusal(url: str, **options: Any) -> NoConnectionError:
    with pytest.raises(NoConnectionError) as caught:
        RedisStreamsQueue.from_url(url, CONFIG, **options)
    return caught.value


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port whose connections are taken and never answered."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def chatty_port() -> Iterator[int]:
    """A port at which something else than Redis answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.sendall(b"INFO {}\r\n")
                connection.recv(1_000)

        thread = threading.Thread(target=answer)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_nothing_listens():
    port = free_port()

    error = refusal(f"redis://127.0.0.1:{port}/0")

    assert str(error).startswith("no connection to Redis: nothing listens at this host and port")
    assert f"127.0.0.1:{port}" in str(error)
    assert (error.operation, error.stream, error.group) == ("XGROUP CREATE", "orders", "billing")
    assert isinstance(error.__cause__, redis.ConnectionError)


def test_the_error_crosses_processes():
    error = refusal(f"redis://127.0.0.1:{free_port()}/0")

    copied = pickle.loads(pickle.dumps(error))

    assert str(copied) == str(error)
    assert copied.stream == "orders"


def test_the_name_of_the_host_is_unknown():
    assert "the name of the host is unknown" in str(refusal("redis://no-such-host.invalid:6379/0"))


def test_there_is_no_such_socket(tmp_path):
    assert "there is no socket of this name" in str(refusal(f"unix://{tmp_path}/redis.sock"))


def test_the_server_does_not_answer(silent_port):
    assert "the server does not answer" in str(
        refusal(f"redis://127.0.0.1:{silent_port}/0", socket_timeout=0.1)
    )


def test_something_else_than_redis_answers(chatty_port):
    assert "what answers at this host and port is no Redis" in str(
        refusal(f"redis://127.0.0.1:{chatty_port}/0")
    )


@pytest.mark.parametrize("protocol", [2, 3])
def test_the_password_is_missing_or_wrong(protocol):
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as admin:
        admin.config_set("requirepass", "s3cret-word")
        address = f"127.0.0.1:{server.port}/0?protocol={protocol}"

        missing = refusal(f"redis://{address}")
        wrong = refusal(f"redis://:another-word@{address}")

        admin.execute_command("AUTH", "s3cret-word")
        admin.config_set("requirepass", "")
    assert "the server wants a password" in str(missing)
    assert "the server refused the user or the password" in str(wrong)
    assert "another-word" not in str(wrong)


def test_the_database_is_not_there(valkey_url):
    address = valkey_url.rpartition("/")[0]

    assert "the server has no database of this number" in str(refusal(f"{address}/99999"))
    with pytest.raises(
        ValueError, match="the number of the database in the url must be a number, got 'orders'"
    ):
        open_client(f"{address}/orders")


def test_tls_to_a_port_without_tls(valkey_url):
    address = valkey_url.removeprefix("redis://")

    assert "the server does not speak TLS at this port; use redis://" in str(
        refusal(f"rediss://{address}", socket_timeout=0.2)
    )


def test_no_tls_to_a_port_with_tls(tmp_path):
    with tls_server(tmp_path) as port:
        assert "use rediss:// instead of redis://" in str(refusal(f"redis://127.0.0.1:{port}/0"))


def test_a_url_of_a_cluster_for_a_single_server(valkey_url):
    assert "the server is not part of a cluster" in str(
        refusal(valkey_url.replace("redis:", "redis+cluster:"))
    )


def test_no_sentinel_answers():
    url = f"redis+sentinel://127.0.0.1:{free_port()}/primary/0"

    assert "no Sentinel that answers knows the service" in str(refusal(url))


@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile"])
def test_a_file_for_tls_that_is_not_there_is_named(option, tmp_path):
    options: list[dict[str, Any]] = [{option: f"{tmp_path}/missing.pem"}, {}]
    for given in options:
        query = "" if given else f"?{option}={tmp_path}/missing.pem"
        with pytest.raises(ValueError, match=rf"{option}: there is no .*missing\.pem"):
            open_client(f"rediss://127.0.0.1:6379/0{query}", **given)


def test_a_registry_that_cannot_be_reached_is_no_fault_of_a_stream():
    with pytest.raises(NoConnectionError, match=r"^no connection to Redis: nothing listens"):
        Topics(open_client(f"redis://127.0.0.1:{free_port()}/0")).names()


def test_a_reply_that_does_not_come_is_an_error_of_the_call():
    with (
        EmbeddedServer() as server,
        RedisStreamsQueue.from_url(server.url, CONFIG, socket_timeout=0.2) as queue,
    ):
        queue.enqueue({"n": 1})
        with redis.Redis.from_url(server.url) as admin:
            admin.client_pause(60_000, all=False)

            with pytest.raises(QueueError, match=r"^XADD on stream 'orders'") as caught:
                queue.enqueue({"n": 2})

            admin.client_unpause()
    assert not isinstance(caught.value, NoConnectionError)
