"""Resources: lazy, cheap to build, silent about their secrets, tidy at the end."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest
from sqlalchemy import text

from dagster_conquiet import DatabaseResource, RedisStreamsResource


def test_building_a_resource_connects_to_nothing():
    redis_streams = RedisStreamsResource(url="redis://127.0.0.1:1/0")
    database = DatabaseResource(url="postgresql+psycopg://nobody@127.0.0.1:1/none")

    assert "RedisStreamsResource" in repr(redis_streams)
    assert "DatabaseResource" in repr(database)


def test_secrets_are_not_in_the_repr():
    resources = [
        RedisStreamsResource(url="redis://user:geheim@127.0.0.1/0"),
        RedisStreamsResource(host="redis.example", password="geheim", tls=True),
        DatabaseResource(url="postgresql+psycopg://user:geheim@127.0.0.1/db"),
    ]

    assert all("geheim" not in repr(resource) + str(resource) for resource in resources)


@pytest.mark.parametrize(
    ("parts", "url"),
    [
        ({}, "redis://127.0.0.1:6379/0"),
        ({"host": "r", "port": 7, "db": 2}, "redis://r:7/2"),
        ({"password": "p@ss/word"}, "redis://:p%40ss%2Fword@127.0.0.1:6379/0"),
        ({"username": "u:v", "password": "p", "tls": True}, "rediss://u%3Av:p@127.0.0.1:6379/0"),
        ({"url": "unix:///run/redis.sock", "host": "ignored"}, "unix:///run/redis.sock"),
    ],
)
def test_a_url_is_made_from_the_parts(parts, url):
    assert RedisStreamsResource(**parts).server_url() == url


def test_environment_variables_are_read_when_a_run_begins(monkeypatch, server_url, database_url, instance):
    resources = {
        "redis_streams": RedisStreamsResource(url=dg.EnvVar("TEST_REDIS_URL")),
        "database": DatabaseResource(url=dg.EnvVar("TEST_DATABASE_URL")),
    }
    monkeypatch.setenv("TEST_REDIS_URL", server_url)
    monkeypatch.setenv("TEST_DATABASE_URL", database_url)

    @dg.asset
    def looks(redis_streams: RedisStreamsResource, database: DatabaseResource) -> None:
        with redis_streams.connect() as client:
            assert client.ping()
        with database.get_engine().connect() as connection:
            assert connection.scalar(text("SELECT 1")) == 1

    assert dg.materialize([looks], resources=resources, instance=instance).success


def test_a_process_has_one_engine_and_it_is_disposed_after_the_run(database_url, instance):
    engines = []

    @dg.op
    def use(database: DatabaseResource) -> None:
        engines.append(database.get_engine())
        with database.get_engine().connect() as connection:
            connection.execute(text("SELECT 1"))

    @dg.job(resource_defs={"database": DatabaseResource(url=database_url)})
    def twice() -> None:
        use.alias("first")()
        use.alias("second")()

    twice.execute_in_process(instance=instance)

    assert engines[0] is engines[1]
    pool: Any = engines[0].pool
    assert pool.checkedin() == 0  # a disposed engine holds no connection


def test_the_client_is_closed_at_the_end_of_its_block(server_url, client):
    with RedisStreamsResource(url=server_url).connect() as opened:
        opened.client_setname("one-of-the-test")
        assert "one-of-the-test" in {info["name"] for info in client.client_list()}

    assert "one-of-the-test" not in {info["name"] for info in client.client_list()}


def test_parts_with_tls_give_the_certificates_to_the_client(tmp_path):
    (tmp_path / "ca.pem").touch()
    redis_streams = RedisStreamsResource(host="127.0.0.1", port=1, tls=True, tls_ca_file=f"{tmp_path}/ca.pem")

    with redis_streams.connect() as opened:
        client: Any = opened
        arguments = client.connection_pool.connection_kwargs

    assert arguments["ssl_ca_certs"] == f"{tmp_path}/ca.pem"
