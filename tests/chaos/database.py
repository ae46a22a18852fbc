"""The database of a run, from outside: its writes are refused for a time, and its sessions looked at."""

from __future__ import annotations

from contextlib import suppress

from sqlalchemy import Connection, Engine, NullPool, create_engine, text
from sqlalchemy.exc import OperationalError

_TERMINATE_OTHERS = text(
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
)
_WRITES = text(
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE application_name = :name AND state = 'idle in transaction' AND backend_xid IS NOT NULL"
)


class Database:
    """PostgreSQL, or SQLite, which is not made read-only but locked."""

    def __init__(self, url: str) -> None:
        is_sqlite = url.startswith("sqlite")
        # Stronger than the database's own setting: this one may always write.
        options = {"timeout": 1} if is_sqlite else {"options": "-c default_transaction_read_only=off"}
        #: For whoever looks at the results; no connection is kept that could be terminated.
        self.engine: Engine = create_engine(url, connect_args=options, poolclass=NullPool)
        self._is_sqlite = is_sqlite
        self._locker: Connection | None = None

    def refuse_writes(self) -> None:
        """Until `accept_writes`; whoever is in a transaction is thrown out."""
        if self._is_sqlite:
            self._locker = self.engine.connect()
            # Else a worker that is stopped has it locked.
            with suppress(OperationalError):
                self._locker.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            self._set_read_only("on")
            with self.engine.connect() as connection:
                connection.execute(_TERMINATE_OTHERS)

    def accept_writes(self) -> None:
        """For every session that is opened from now on: those of before stay read-only."""
        if self._locker is not None:
            self._locker.close()
            self._locker = None
        else:
            self._set_read_only("off")

    def is_writing(self, worker: str) -> bool:
        """Whether a worker that is stopped has written in a transaction that is open; SQLite cannot tell."""
        if self._is_sqlite:
            return True
        with self.engine.connect() as connection:
            return connection.scalar(_WRITES, {"name": worker}) == 1

    def _set_read_only(self, value: str) -> None:
        name = self.engine.url.database
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text(f"ALTER DATABASE {name} SET default_transaction_read_only = {value}"))
