"""The table that the tasks write to, and what is in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import NullPool

from benchmarks.databases import database_url
from benchmarks.errors import BenchmarkError

_DURABLE = ("fsync", "synchronous_commit")


class EffectsTable:
    """One row for each commit of a task."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        with engine.begin() as connection:
            if engine.dialect.name == "sqlite":
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")
            else:
                # Without them a commit is none.
                settings = [connection.scalar(text(f"SHOW {name}")) for name in _DURABLE]
                if settings != ["on", "on"]:
                    raise BenchmarkError(
                        f"{', '.join(_DURABLE)} of PostgreSQL: {', '.join(map(str, settings))}"
                    )
            connection.execute(text("CREATE TABLE effects (number INTEGER)"))

    @property
    def plain_url(self) -> str:
        """As every driver reads it."""
        return self._engine.url.set(drivername=self._engine.dialect.name).render_as_string(False)

    def counts(self) -> Counter[int]:
        """How often each task has written."""
        with self._engine.connect() as connection:
            return Counter(connection.execute(text("SELECT number FROM effects")).scalars())


@contextmanager
def effects_table(kind: str, directory: Path) -> Iterator[EffectsTable]:
    """An empty one in a database of its own."""
    with database_url(kind, directory) as url:
        yield EffectsTable(create_engine(url, poolclass=NullPool))
