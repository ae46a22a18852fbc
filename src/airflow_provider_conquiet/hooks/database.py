"""The application's database inside a task: one small engine, disposed at the end, never Airflow's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

from airflow.providers.common.compat.sdk import mask_secret
from sqlalchemy import Engine, QueuePool, create_engine, inspect, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from conquiet import DbError

#: No application has all of these; in a worker Airflow hides the address of its own database.
_TABLES_OF_AIRFLOW = ("serialized_dag", "dag_run", "task_instance")


@contextmanager
def application_engine(db_url: str, *, conn_id: str) -> Iterator[Engine]:
    """An engine of one connection, for the length of the block.

    Raises:
        ValueError: the URL cannot be used, or it leads to Airflow's metadata database.
        DbError: the database does not answer.
    """
    try:
        # One connection serves the messages, a second one an inbox row that is taken back.
        engine = create_engine(db_url, poolclass=QueuePool, pool_size=1, max_overflow=1)
    except (ArgumentError, ImportError) as error:
        raise ValueError(f"db_url of connection {conn_id!r} cannot be used: {error}") from error
    try:
        try:
            inspector = inspect(engine)
            is_airflows = all(inspector.has_table(name) for name in _TABLES_OF_AIRFLOW)
        except SQLAlchemyError as error:
            raise DbError(f"the database of connection {conn_id!r} does not answer: {error}") from error
        if is_airflows:
            raise ValueError(
                f"db_url of connection {conn_id!r} leads to Airflow's metadata database; "
                "give the application a database of its own"
            )
        yield engine
    finally:
        engine.dispose()


def mask_password(db_url: str) -> None:
    """Mask the URL's password in logs, as it is and as it is written in URLs."""
    # Airflow masks by the field's name, which does not say that a password is inside.
    try:
        password = make_url(db_url).password
    except ArgumentError:
        return
    if password:
        mask_secret(str(password))
        mask_secret(quote(str(password), safe=""))
