"""StoredConnection: the server and the application's database that an Airflow connection names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from airflow.sdk import BaseHook
from sqlalchemy import Engine

from airflow_provider_conquiet.airflow_names import AirflowNotFoundException
from airflow_provider_conquiet.hooks.database import application_engine, url_of_connection, url_of_extra
from airflow_provider_conquiet.hooks.server import ConnectionFieldError, Server


class StoredConnection:
    """A connection by its id; Airflow is asked for it when it is first needed, and once.

    Args:
        db_conn_id: the connection of the application's database, instead of the one that it names itself.
    """

    def __init__(self, conn_id: str, *, db_conn_id: str | None = None) -> None:
        self.conn_id = conn_id
        self._db_conn_id = db_conn_id

    @cached_property
    def server(self) -> Server:
        """The server that it names."""
        return Server.of_connection(self._connection, self._extra)

    async def aserver(self) -> Server:
        """As `server`, without blocking the event loop; asked for each time."""
        try:
            connection = await BaseHook.aget_connection(self.conn_id)
        except AirflowNotFoundException as error:
            raise _not_found(self.conn_id, error) from None
        # Airflow 3.3 and later would block the loop for the plain one, to mask secrets.
        asynchronous = getattr(connection, "aextra_dejson", None)
        extra = connection.extra_dejson if asynchronous is None else await asynchronous()
        return Server.of_connection(connection, extra)

    @cached_property
    def database_url(self) -> str | None:
        """The SQLAlchemy URL of the database, with its password; `None` if there is none."""
        in_extra = url_of_extra(self.conn_id, self._extra)
        if self._database_conn_id is None:
            return in_extra
        if in_extra is not None and self._db_conn_id is None:
            raise ConnectionFieldError(
                self.conn_id, "has both a db_conn_id and a db_url: one of them must go"
            )
        connection = _connection_of(self._database_conn_id)
        return url_of_connection(connection, connection.extra_dejson)

    @contextmanager
    def engine(self, *, connections: int = 1) -> Iterator[Engine]:
        """The database for the length of the block, with so many connections that are kept.

        Raises:
            ConnectionFieldError: the connection names no database, or Airflow's own.
            DbError: the database does not answer.
        """
        url = self.database_url
        if url is None:
            reason = "names no database; name the connection of the application's database in db_conn_id"
            raise ConnectionFieldError(self.conn_id, reason)
        conn_id = self._database_conn_id or self.conn_id
        with application_engine(url, conn_id=conn_id, connections=connections) as engine:
            yield engine

    @property
    def _database_conn_id(self) -> str | None:
        return self._db_conn_id or self._extra.get("db_conn_id") or None

    @cached_property
    def _connection(self) -> Any:
        return _connection_of(self.conn_id)

    @cached_property
    def _extra(self) -> Mapping[str, Any]:
        extra: Mapping[str, Any] = self._connection.extra_dejson
        return extra


def _connection_of(conn_id: str) -> Any:
    try:
        try:
            return BaseHook.get_connection(conn_id)
        except ImportError:
            # The api-server of Airflow 3.1, where no task asks: for the page, and for the Test button.
            from airflow.models.connection import Connection

            return Connection.get_connection_from_secrets(conn_id)
    except AirflowNotFoundException as error:
        raise _not_found(conn_id, error) from None


def _not_found(conn_id: str, error: Exception) -> Exception:
    """Airflow takes a variable that it cannot read for a connection that is not there."""
    variable = f"AIRFLOW_CONN_{conn_id.upper()}"
    if variable not in os.environ:
        return error
    return ConnectionFieldError(
        conn_id,
        f"cannot be read: the environment variable {variable} is neither a URI nor JSON; in a URI, special "
        "characters of user and password are percent-encoded (/ is %2F, # is %23, ? is %3F, @ is %40)",
    )
