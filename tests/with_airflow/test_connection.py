"""What an Airflow connection means: the server, TLS, the application's database, and what is refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from airflow.sdk.definitions.connection import Connection
from sqlalchemy import make_url

from airflow_provider_conquiet.hooks.database import url_of_connection
from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.hooks.server import Server
from conquiet import EmbeddedServer
from tests.services import database, free_port
from tests.tls import tls_server
from tests.with_redis.test_urls import running_sentinel


def url_of(uri_or_fields: str | dict[str, Any]) -> str:
    if isinstance(uri_or_fields, str):
        connection = Connection.from_uri(uri_or_fields, "c")
    else:
        connection = Connection(conn_id="c", **{"conn_type": "redis_streams", "host": "r"} | uri_or_fields)
    return Server.of_connection(connection, connection.extra_dejson).url


def extra(**fields: Any) -> dict[str, str]:
    return {"extra": json.dumps(fields)}


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch):
    """Sets the connection `c`, and returns a hook of it."""

    def make(fields: dict[str, Any] | str, conn_id: str = "c") -> RedisStreamsHook:
        text = fields if isinstance(fields, str) else json.dumps({"conn_type": "redis_streams"} | fields)
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", text)
        return RedisStreamsHook(conn_id)

    return make


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({}, "redis://r:6379/0"),
        ({"port": 7000} | extra(db=3), "redis://r:7000/3"),
        ({"password": "p@ss/w"}, "redis://:p%40ss%2Fw@r:6379/0"),
        ({"login": "app", "password": "x"} | extra(tls=True), "rediss://app:x@r:6379/0"),
        (extra(tls="true", db="2"), "rediss://r:6379/2"),
        (extra(tls=True, ca_path="/ca.pem"), "rediss://r:6379/0?ssl_ca_certs=%2Fca.pem"),
        (extra(tls=True, ssl_cert_reqs="none"), "rediss://r:6379/0?ssl_cert_reqs=none"),
        ({"host": "::1"}, "redis://[::1]:6379/0"),
        (extra(mode="cluster"), "redis+cluster://r:6379/0"),
        ({"host": "a, b:1"} | extra(mode="sentinel", service="m"), "redis+sentinel://a:26379,b:1/m/0"),
        # Airflow's own redis connection, with the names that it has for the fields
        (
            {"conn_type": "redis"} | extra(ssl=True, ssl_ca_certs="/ca"),
            "rediss://r:6379/0?ssl_ca_certs=%2Fca",
        ),
        ({"conn_type": "redis"} | extra(db=0, ssl=False, ssl_cert_reqs="none"), "redis://r:6379/0"),
        ({"conn_type": "redis"} | extra(cluster=True, startup_nodes="s:1"), "redis+cluster://r:6379/0"),
        # URIs
        ("rediss://app:x@r:7000/2", "rediss://app:x@r:7000/2"),
        ("redis://:x@r/3?ssl_cert_reqs=none&ssl=true", "rediss://:x@r:6379/3?ssl_cert_reqs=none"),
        ("redis-streams://r/?db=1&tls=true", "rediss://r:6379/1"),
    ],
)
def test_fields_of_the_connection_become_the_url(fields, url):
    assert url_of(fields) == url


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"host": ""}, "connection 'c' names no host"),
        ("redis-streams://", "connection 'c' names no host"),
        ("redis:r:6379", "connection 'c' names no host"),
        ("localhost:6379", "has type 'localhost', not one of redis_streams, redis, rediss"),
        ({"conn_type": "postgres"}, "has type 'postgres'"),
        ("redis://u:12/3@h:6379/0", "special characters of the password are percent-encoded"),
        ({"host": "redis://r"}, "is not the name of a host"),
        ({"host": "a,b"}, "names 2 hosts, which only modes cluster and sentinel can have"),
        (extra(mode="raft"), "has mode 'raft', not one of"),
        (extra(mode="sentinel"), "has mode 'sentinel' and names no service"),
        (extra(mode="cluster", db=1), "has database 1, and a cluster has only 0"),
        (extra(db="first"), "has 'first' where the number of a database is expected"),
        ("redis://r/1?db=2", "names two databases of the server, 1 and 2"),
        (extra(tls="maybe"), "tls of connection 'c' must be true or false, got 'maybe'"),
        (extra(tls=True, ssl=False), "has different values for ssl and tls"),
        ("rediss://r?tls=false", "has type rediss, and says that TLS is not used"),
        (extra(ca_path="/ca.pem"), "has ca_path, and says that TLS is not used"),
        (extra(tls=True, cert_path="/c"), "has only one of cert_path and key_path"),
        (extra(tls=True, ssl_cert_reqs="require"), "has ssl_cert_reqs 'require', not one of"),
        (extra(ssl_ca_cert="/ca.pem"), "has unknown fields in its extra: ssl_ca_cert"),
        ({"extra": "nojson"}, "has an extra that is not a JSON object"),
    ],
)
def test_a_connection_that_cannot_be_meant_is_refused(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        url_of(fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"host": "redis://app:swordfish@h:6379/0"},
        {"host": "app:swordfish@h"},
        {"host": "h?password=swordfish"},
        # The password has a slash that is not percent-encoded: Airflow takes what follows for the database.
        "redis://u:12/swordfish@h:6379/0",
        "redis://u:12/swordfish@h:6379/0?db=1",
    ],
)
def test_a_password_that_stands_in_a_wrong_field_is_not_quoted(fields):
    with pytest.raises(ValueError, match=r"\*\*\*") as raised:
        url_of(fields)

    assert "swordfish" not in str(raised.value)


@pytest.mark.parametrize("name", ["password", "passwd", "sslpassword"])
def test_a_password_among_the_arguments_of_a_database_url_is_refused_too(connect, name):
    given = {"conn_type": "redis_streams", "host": "h"}
    fields = given | {"extra": {"db_url": f"postgresql+psycopg://app@h/shop?{name}=swordfish"}}
    with pytest.raises(ValueError, match="rename the field") as raised:
        _ = connect(fields).database_url

    assert "swordfish" not in str(raised.value)


@pytest.mark.parametrize(
    "uri", ["redis://:p#ss@host:6379/0", "redis://:p/w@host:6379", '{"host":', "redis://h:x"]
)
def test_a_uri_that_cannot_be_parsed_is_an_error_that_names_its_variable(connect, uri):
    with pytest.raises(
        ValueError, match="connection 'c' cannot be read: the environment variable AIRFLOW_CONN_C"
    ):
        connect(uri).get_conn()
    with pytest.raises(ValueError, match="AIRFLOW_CONN_C"):
        asyncio.run(connect(uri).get_async_conn())


def test_tls_with_a_client_certificate_from_the_form_and_from_airflows_own_connection(
    connect, tmp_path, stream
):
    with tls_server(tmp_path, "--requirepass", "swordfish") as port:
        ours = {
            "tls": True,
            "ca_path": f"{tmp_path}/ca.crt",
            "cert_path": f"{tmp_path}/client.crt",
            "key_path": f"{tmp_path}/client.key",
            "db": 2,
        }
        fields = {"host": "127.0.0.1", "port": port, "password": "swordfish"}
        airflows = {
            "ssl": True,
            "ssl_ca_certs": ours["ca_path"],
            "ssl_certfile": ours["cert_path"],
            "ssl_keyfile": ours["key_path"],
            "db": 2,
        }

        with connect(fields | {"extra": ours}) as hook:
            is_fine, sentence = hook.test_connection()
            hook.enqueue(stream, [{"number": 1}])
        with connect(fields | {"conn_type": "redis", "extra": airflows}) as hook:
            assert hook.backlog(stream, "billing").lag == 1

            async def ping() -> bool:
                client = await hook.get_async_conn()
                try:
                    return bool(await client.ping())
                finally:
                    await client.aclose()

            assert asyncio.run(ping())
    assert is_fine, sentence
    assert f"(standalone) answers at rediss://127.0.0.1:{port}/2 by TLS" in sentence


def test_each_mistake_about_tls_password_or_host_is_one_sentence(connect, tmp_path):
    with tls_server(tmp_path, "--requirepass", "swordfish") as port, EmbeddedServer() as plain:
        server = {"host": "127.0.0.1", "port": port, "password": "swordfish"}
        names = {"ca_path": "ca.crt", "cert_path": "client.crt", "key_path": "client.key"}
        tls: dict[str, Any] = {"tls": True} | {name: f"{tmp_path}/{file}" for name, file in names.items()}
        (tmp_path / "no.crt").write_text("not a certificate")

        def sentence(fields: dict[str, Any], **of_extra: Any) -> str:
            is_fine, told = connect(server | fields | {"extra": tls | of_extra}).test_connection()
            assert not is_fine
            assert "swordfish" not in told
            assert "\n" not in told
            assert told.startswith("connection 'c' ")
            return told

        assert "the server's certificate is not accepted; check ca_path" in sentence({}, ca_path=None)
        assert "there is no such file on this machine" in sentence({}, ca_path="/no/such/ca.pem")
        assert "ca_path, cert_path or key_path cannot be used" in sentence({}, ca_path=f"{tmp_path}/no.crt")
        assert "the server refused the client" in sentence({}, cert_path=None, key_path=None)
        assert "the server refused the user or the password" in sentence({"password": "wrong"})
        assert "the server refused the user or the password" in sentence({"password": None})
        assert "the server has no database of this number" in sentence({}, db=99)
        assert "the name of the host is unknown" in sentence({"host": "no-such-host.invalid"})
        assert "nothing listens at this host and port" in sentence({"port": free_port()})
        assert "the server speaks none at this port; untick tls" in sentence(
            {"port": plain.port}, socket_timeout=1
        )
        assert "if it expects TLS, tick tls" in connect(server).test_connection()[1]


def test_sentinels_and_their_service_are_a_mode_of_the_connection(connect, tmp_path, stream):
    with EmbeddedServer() as primary:
        following = ["--replicaof", "127.0.0.1", str(primary.port)]
        with EmbeddedServer(args=following), running_sentinel(tmp_path, primary) as port:
            of_sentinel = {"mode": "sentinel", "service": "orders-service"}
            with connect({"host": "127.0.0.1", "port": port, "extra": of_sentinel}) as hook:
                hook.enqueue(stream, [{"number": 1}])
                is_fine, sentence = hook.test_connection()

    assert is_fine, sentence
    assert "(sentinel) answers" in sentence


def test_a_cluster_is_a_mode_of_the_connection(connect, stream):
    with (
        EmbeddedServer(cluster=3) as server,
        connect({"host": "127.0.0.1", "port": server.port, "extra": {"mode": "cluster"}}) as hook,
    ):
        hook.enqueue(stream, [{"number": 1}], dedupe_id="once")
        is_fine, sentence = hook.test_connection()

        assert hook.backlog(stream, "billing").lag == 1
    assert is_fine
    assert "(cluster) answers" in sentence


def test_an_acl_user_is_the_login_and_needs_no_further_rights(connect, valkey, airflow_connection):
    valkey.acl_setuser("app", enabled=True, passwords=["+swordfish"], categories=["-@all"], keys=["*"])
    try:
        hook = connect(airflow_connection | {"login": "app", "password": "swordfish"})
        is_fine, sentence = hook.test_connection()
    finally:
        valkey.acl_deluser("app")

    assert is_fine, sentence
    assert "answers at redis://app@127.0.0.1" in sentence


# The application's database


def test_the_database_is_that_of_an_ordinary_connection(connect, airflow_connection, engine):
    path = engine.url.database
    connect({"conn_type": "sqlite", "host": path}, "shop")
    hook = connect(airflow_connection | {"extra": {"db_conn_id": "shop"}})

    is_fine, sentence = hook.test_connection()
    with hook.engine() as opened:
        assert opened.url.database == path
    with RedisStreamsHook("c", db_conn_id="shop").engine() as opened:
        assert opened.url.database == path

    assert is_fine
    assert f"The database sqlite:///{path} answers" in sentence


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_a_connection_of_airflow_to_a_database_server_opens_it(connect, airflow_connection, tmp_path, kind):
    with database(kind, tmp_path) as text:
        url = make_url(text)
        of_database = {
            "conn_type": "mysql" if kind == "mariadb" else kind,
            "host": url.host,
            "port": url.port,
            "login": url.username,
            "password": url.password,
            "schema": url.database,
        }
        connect(of_database, "shop")
        with connect(airflow_connection | {"extra": {"db_conn_id": "shop"}}) as hook, hook.engine() as engine:
            assert engine.url.database == url.database


@pytest.mark.parametrize(
    ("uri", "url"),
    [
        (
            "postgres://u:p%40@h:1/d?sslmode=verify-full",
            "postgresql+psycopg://u:p%40@h:1/d?sslmode=verify-full",
        ),
        ("mysql://u@h/d?charset=utf8mb4", "mysql+pymysql://u@h/d?charset=utf8mb4"),
        ('mysql://h/d?ssl={"ca": "x"}', "mysql+pymysql://h/d?ssl_ca=x"),
        ("sqlite:////shop.db", "sqlite:////shop.db"),
    ],
)
def test_no_setting_of_an_ordinary_connection_is_lost(uri, url):
    connection = Connection.from_uri(uri, "shop")

    assert url_of_connection(connection, connection.extra_dejson) == url


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"conn_type": "http", "host": "h"}, "connection 'shop' has type 'http'"),
        ({"conn_type": "postgres"}, "connection 'shop' names no host"),
        (
            {"conn_type": "mysql", "host": "h", "extra": '{"ssl": true}'},
            "connection 'shop' has ssl True, which",
        ),
        (
            {"conn_type": "mysql", "host": "h", "extra": '{"ssl": "no"}'},
            "connection 'shop' has ssl 'no', which",
        ),
        (
            {"conn_type": "postgres", "host": "h", "extra": '{"iam": true}'},
            "has fields that only Airflow's own hooks understand: iam",
        ),
    ],
)
def test_a_connection_that_is_no_database_is_refused(fields, sentence):
    connection = Connection(conn_id="shop", **fields)

    with pytest.raises(ValueError, match=sentence):
        url_of_connection(connection, connection.extra_dejson)


def test_a_password_in_a_readable_field_is_refused_and_not_quoted(connect, airflow_connection):
    hook = connect(airflow_connection | {"extra": {"db_url": "postgresql+psycopg://app:swordfish@h/shop"}})

    is_fine, sentence = hook.test_connection()

    assert not is_fine
    assert "rename the field to db_url_secret" in sentence
    assert "swordfish" not in sentence


def test_the_connection_api_shows_no_password_of_the_database_or_of_a_file(airflow_database):
    from airflow.api_fastapi.core_api.datamodels.connections import ConnectionResponse
    from airflow.models.connection import Connection as StoredConnection

    secrets = {
        "db_url_secret": "postgresql+psycopg://app:swordfish@h/shop",
        "sentinel_password": "swordfish-2",
        "key_password": "swordfish-3",
    }
    stored = StoredConnection(conn_id="c", conn_type="redis_streams", host="r", extra=json.dumps(secrets))

    shown = ConnectionResponse.model_validate(stored).model_dump_json()

    assert "db_url_secret" in shown
    assert "swordfish" not in shown


def test_a_secret_url_opens_the_database(connect, airflow_connection, engine):
    url = engine.url.render_as_string(hide_password=False)
    with (
        connect(airflow_connection | {"extra": {"db_url_secret": url}}) as hook,
        hook.engine() as opened,
    ):
        assert opened.url.database == engine.url.database


def test_two_databases_in_one_connection_are_refused(connect, airflow_connection):
    for fields in (
        {"db_conn_id": "a", "db_url": "sqlite://"},
        {"db_url": "sqlite://", "db_url_secret": "sqlite://"},
    ):
        is_fine, sentence = connect(airflow_connection | {"extra": fields}).test_connection()
        assert not is_fine
        assert "db_url" in sentence


def test_a_connection_without_a_database_says_what_to_do(airflow_connection, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_REDIS_STREAMS_DEFAULT", json.dumps(airflow_connection | {"extra": {}}))

    with (
        pytest.raises(ValueError, match="name the connection of the application's database in db_conn_id"),
        RedisStreamsHook().engine(),
    ):
        raise AssertionError


def test_airflows_metadata_database_is_refused(airflow_database, airflow_connection, monkeypatch):
    from airflow.configuration import conf

    fields = airflow_connection | {"extra": {"db_url": conf.get("database", "sql_alchemy_conn")}}
    monkeypatch.setenv("AIRFLOW_CONN_REDIS_STREAMS_DEFAULT", json.dumps(fields))

    with (
        pytest.raises(ValueError, match="leads to Airflow's metadata database"),
        RedisStreamsHook().engine(),
    ):
        raise AssertionError


def test_the_connection_test_says_what_answers(airflow_connection):
    is_fine, sentence = RedisStreamsHook().test_connection()

    assert is_fine, sentence
    assert sentence.startswith("connection 'redis_streams_default': ")
    assert "(standalone) answers at redis://127.0.0.1" in sentence
    assert "The database sqlite:///" in sentence


def test_the_button_says_this_connection_where_airflow_has_made_up_a_name_for_it(connect):
    is_fine, sentence = connect({"host": ""}, "Yk3xQ9pL").test_connection()

    assert (is_fine, sentence) == (False, "this connection names no host")


def test_the_connection_test_says_that_nobody_answers(airflow_connection, monkeypatch):
    fields = airflow_connection | {"port": free_port()}
    monkeypatch.setenv("AIRFLOW_CONN_REDIS_STREAMS_DEFAULT", json.dumps(fields))

    is_fine, sentence = RedisStreamsHook().test_connection()

    assert not is_fine
    assert sentence.startswith("connection 'redis_streams_default' to redis://127.0.0.1:")
    assert "failed: nothing listens at this host and port (ConnectionError: " in sentence


def test_the_connection_test_says_that_the_database_is_unavailable_without_its_password(
    airflow_connection, monkeypatch
):
    away = f"postgresql+psycopg://app:swordfish@127.0.0.1:{free_port()}/app"
    fields = airflow_connection | {"extra": {"db_url_secret": away}}
    monkeypatch.setenv("AIRFLOW_CONN_REDIS_STREAMS_DEFAULT", json.dumps(fields))

    is_fine, sentence = RedisStreamsHook().test_connection()

    assert not is_fine
    assert "does not answer" in sentence
    assert "swordfish" not in sentence
