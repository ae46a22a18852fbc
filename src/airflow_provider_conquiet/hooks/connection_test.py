"""What the Test button says of a connection: the server that answers, and the database, or what is wrong."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from redis.exceptions import NoPermissionError
from sqlalchemy import make_url

from airflow_provider_conquiet.airflow_names import AirflowNotFoundException
from airflow_provider_conquiet.hooks.server import ConnectionFieldError
from airflow_provider_conquiet.hooks.server_errors import CONNECT_ERRORS, ServerConnectionError
from airflow_provider_conquiet.hooks.stored_connection import StoredConnection
from conquiet import DbError
from conquiet.masking import mask
from conquiet.queue import Client

#: As Airflow's `get_random_string` makes it.
_MADE_UP = re.compile(r"[A-Za-z0-9]{8}")


def try_connection(stored: StoredConnection, connect: Callable[[], Client]) -> tuple[bool, str]:
    """Connect to the server, and to the database if there is one, and describe both."""
    is_fine, sentence = _try(stored, connect)
    # The button tests what is in the form, under a name that it makes up and that no user has seen.
    if _MADE_UP.fullmatch(stored.conn_id) and f"AIRFLOW_CONN_{stored.conn_id.upper()}" in os.environ:
        sentence = sentence.replace(f"connection {stored.conn_id!r}", "this connection")
    return is_fine, sentence


def _try(stored: StoredConnection, connect: Callable[[], Client]) -> tuple[bool, str]:
    try:
        server = stored.server
        info = _server_info(connect())
    except (ConnectionFieldError, ServerConnectionError) as error:
        return False, str(error)
    except (ValueError, AirflowNotFoundException, *CONNECT_ERRORS) as error:
        text = mask(f"{type(error).__name__}: {error}")
        return False, f"connection {stored.conn_id!r}: {text}"
    tls = " by TLS" if server.tls else ""
    if dict(server.options).get("ssl_cert_reqs") == "none" and server.tls:
        tls += ", its certificate is not checked"
    found = f"connection {stored.conn_id!r}: {info} ({server.mode}) answers at {server.shown}{tls}"
    try:
        if stored.database_url is None:
            return True, f"{found}. No application database: tasks that drain need db_conn_id"
        with stored.engine() as engine:
            url = make_url(engine.url).render_as_string(hide_password=True)
            return True, f"{found}. The database {url} answers"
    except (DbError, ValueError, AirflowNotFoundException) as error:
        return False, f"{found}, but {error}"


def _server_info(client: Client) -> str:
    try:
        info: Any = client.info("server")
    except NoPermissionError:
        return "A server that shows its version to others only"
    # A cluster client answers for each node, or for one, as its version likes.
    node = info if "redis_version" in info else next(iter(info.values()))
    name = "Valkey" if "valkey_version" in node else "Redis"
    return f"{name} {node.get('valkey_version') or node['redis_version']}"
