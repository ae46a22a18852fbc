"""The application's database inside a task: one small engine, disposed at the end, never Airflow's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, QueuePool, create_engine, inspect, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from conquiet import DbError

#: No application has all of these; in a worker Airflow hides the address of its database, so looks must do.
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
        _refuse_metadata_database(engine, conn_id)
        yield engine
    finally:
        engine.dispose()


def shown_without_password(db_url: str) -> str:
    """The URL as it may be logged."""
    return make_url(db_url).render_as_string(hide_password=True)


def _refuse_metadata_database(engine: Engine, conn_id: str) -> None:
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
