"""The application's database inside a task: one small engine, disposed at the end, never Airflow's own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Engine, QueuePool, create_engine, inspect, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from airflow_provider_conquiet.airflow_names import mask_secret
from airflow_provider_conquiet.hooks.server import ConnectionFieldError, ConnectionFields
from conquiet import DbError
from conquiet.masking import mask, remember_secret

#: No application has all of these; in a worker Airflow hides the address of its own database.
_TABLES_OF_AIRFLOW = ("serialized_dag", "dag_run", "task_instance")
#: Airflow's connection types, and the drivers for each, the first that is installed.
_DRIVERS = {
    "postgres": (("psycopg", "postgresql+psycopg"), ("psycopg2", "postgresql+psycopg2")),
    "mysql": (("pymysql", "mysql+pymysql"), ("MySQLdb", "mysql+mysqldb")),
    "sqlite": (("sqlite3", "sqlite"),),
}
#: Fields of Airflow's own hooks that say nothing about how the database is reached.
_OF_HOOKS_ALONE = {"cursor", "client", "local_infile", "enable_log_db_messages"}


@contextmanager
def application_engine(db_url: str, *, conn_id: str, connections: int = 1) -> Iterator[Engine]:
    """An engine of one connection, or of as many as handlers run at once, for the length of the block.

    Raises:
        ValueError: the URL cannot be used, or it leads to Airflow's metadata database.
        DbError: the database does not answer.
    """
    mask_password(db_url)
    try:
        # One connection serves the messages of a thread, a second one an inbox row that is taken back.
        engine = create_engine(db_url, poolclass=QueuePool, pool_size=connections, max_overflow=connections)
    except (ArgumentError, ImportError) as error:
        raise ConnectionFieldError(
            conn_id, f"names a database that cannot be used: {mask(str(error))}"
        ) from error
    try:
        try:
            inspector = inspect(engine)
            is_airflows = all(inspector.has_table(name) for name in _TABLES_OF_AIRFLOW)
        except SQLAlchemyError as error:
            words = mask(str(error.__cause__ or error)).strip().splitlines()
            reason = " ".join(word.strip() for word in words)
            raise DbError(f"the database of connection {conn_id!r} does not answer: {reason}") from error
        if is_airflows:
            reason = "leads to Airflow's metadata database; give the application a database of its own"
            raise ConnectionFieldError(conn_id, reason)
        yield engine
    finally:
        engine.dispose()


def url_of_extra(conn_id: str, extra: Mapping[str, Any]) -> str | None:
    """The database that a connection to Redis names by its URL.

    Raises:
        ConnectionFieldError: there are two, or a password would be readable in Airflow.
    """
    given = {name: str(extra[name]) for name in ("db_url", "db_url_secret") if extra.get(name)}
    if len(given) > 1:
        raise ConnectionFieldError(conn_id, "has db_url and db_url_secret, which are the same field")
    for name, url in given.items():
        mask_password(url)
        if name == "db_url" and _passwords_of(url):
            raise ConnectionFieldError(
                conn_id,
                "has a password in db_url, which Airflow shows to all who may read connections: make a "
                "connection of the database and name it in db_conn_id, or rename the field to db_url_secret",
            )
        return url
    return None


def url_of_connection(connection: ConnectionFields, extra: Mapping[str, Any]) -> str:
    """The SQLAlchemy URL of an ordinary Airflow connection to PostgreSQL, MySQL, MariaDB or SQLite.

    Raises:
        ConnectionFieldError: it is of another type, or has fields that SQLAlchemy has no words for.
    """
    kind = str(connection.conn_type)
    kind = {"postgresql": "postgres", "mariadb": "mysql"}.get(kind, kind)
    if kind not in _DRIVERS:
        reason = (
            f"has type {kind!r}; messages are handled in postgres, mysql or sqlite, others by db_url_secret"
        )
        raise ConnectionFieldError(connection.conn_id, reason)
    if connection.extra and not extra:
        try:
            json.loads(connection.extra)
        except ValueError as error:
            raise ConnectionFieldError(connection.conn_id, "has an extra that is not JSON") from error
    query = {name: value for name, value in extra.items() if name not in _OF_HOOKS_ALONE}
    tls = query.pop("ssl", None) if kind == "mysql" else None
    if tls is not None:
        # As Airflow's MySQL hook takes it: {"ca": …, "cert": …, "key": …}, or the same as text.
        try:
            files = dict(json.loads(tls) if isinstance(tls, str) else tls)
        except (TypeError, ValueError) as error:
            reason = f'has ssl {tls!r}, which is not as {{"ca": …, "cert": …, "key": …}}'
            raise ConnectionFieldError(connection.conn_id, reason) from error
        query |= {f"ssl_{name}": value for name, value in files.items()}
    odd = sorted(
        name
        for name, value in query.items()
        if isinstance(value, bool) or not isinstance(value, str | int | float)
    )
    if odd:
        reason = f"has fields that only Airflow's own hooks understand: {', '.join(odd)}; use db_url_secret"
        raise ConnectionFieldError(connection.conn_id, reason)
    drivers = _DRIVERS[kind]
    scheme = next((scheme for module, scheme in drivers if find_spec(module)), drivers[0][1])
    texts = {name: str(value) for name, value in query.items()}
    if kind == "sqlite":
        # Airflow has the path as the host or, from a URI, as the schema.
        path = connection.host or connection.schema
        if not path:
            raise ConnectionFieldError(connection.conn_id, "names no file")
        return URL.create(scheme, database=path, query=texts).render_as_string(hide_password=False)
    if not connection.host:
        raise ConnectionFieldError(connection.conn_id, "names no host")
    return URL.create(
        scheme,
        username=connection.login or None,
        password=connection.password or None,
        host=connection.host,
        port=connection.port,
        database=connection.schema or None,
        query=texts,
    ).render_as_string(hide_password=False)


def mask_password(db_url: str) -> None:
    """Mask the URL's password in logs, as it is and as it is written in URLs."""
    # Airflow masks by the field's name, which does not say that a password is inside.
    for password in _passwords_of(db_url):
        remember_secret(password)
        mask_secret(password)
        mask_secret(quote(password, safe=""))


def _passwords_of(db_url: str) -> list[str]:
    try:
        url = make_url(db_url)
    except ArgumentError:
        return []
    # Drivers take it as an argument too, PyMySQL as passwd, and libpq that of the key's file.
    found = [url.password, *map(url.query.get, ("password", "passwd", "sslpassword"))]
    return [str(password) for password in found if password]
