"""PayloadStore: keeps arguments and results that are too large for Redis; in a directory, or in a table."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Protocol

from sqlalchemy import (
    BigInteger,
    Column,
    Engine,
    LargeBinary,
    MetaData,
    String,
    Table,
    delete,
    insert,
    select,
)
from sqlalchemy.dialects.mysql import LONGBLOB

from conquiet.db.table_creation import MYSQL_OPTIONS, check_table_name, create_table
from conquiet.tasks import clock

#: What a key may be, so that it is a safe name of a file: those of an app are 32 hex digits.
_KEY = re.compile(r"[0-9a-zA-Z_-]{1,128}")
#: The file by which a directory that is mounted is known; no content has its name.
_MARKER = "conquiet-payloads"


class PayloadStore(Protocol):
    """Keeps content above `max_bytes` of the app, by keys that the app makes; each key is written once.

    Set as `app.payload_store` before tasks are enqueued and before a worker starts, in every process of the
    app. Its methods are called by several threads at once. What one of them raises means that the store is
    unavailable: the task is tried again, without an end and without an attempt. So it must not hide that
    content could not be read. Tested by `conquiet.testing.PayloadStoreContract`.

    Examples:
        >>> class InMemory:
        ...     def __init__(self):
        ...         self.kept = {}
        ...
        ...     def put(self, key, content):
        ...         self.kept[key] = content
        ...
        ...     def get(self, key):
        ...         return self.kept.get(key)
        ...
        ...     def delete(self, key):
        ...         self.kept.pop(key, None)
        >>> shop = TaskApp(server.url, namespace="in-memory", max_bytes=1_000)
        >>> shop.payload_store = InMemory()  # for tests of one process
        >>> handle = shop.enqueue("shop.print", {"text": "x" * 2_000})
    """

    def put(self, key: str, content: bytes) -> None:
        """Write content, all of it or nothing, so that other processes can read it and no crash loses it."""

    def get(self, key: str) -> bytes | None:
        """The content as it was written, `None` if there is none."""

    def delete(self, key: str) -> None:
        """Delete content for good; a key without any is no error."""


class DirectoryPayloads:
    """A file for each content, in a directory that all processes share, and that `create` has made once.

    Files have the permissions that the umask of the process leaves. Without the file `conquiet-payloads` in
    the directory every method raises `FileNotFoundError`: its file system is not mounted here.

    Examples:
        >>> payloads = DirectoryPayloads("payloads")
        >>> payloads.create()  # once, when the app is set up
        >>> payloads.put("an-order", b"{}")
        >>> payloads.get("an-order")
        b'{}'
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)

    def create(self) -> None:
        """Make the directory ready, once, when the app is set up; called again, it changes nothing.

        Not in each process: where the file system is not mounted, it would mark the empty directory below.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        (self._directory / _MARKER).touch()
        _sync_directory(self._directory)
        _sync_directory(self._directory.absolute().parent)

    def put(self, key: str, content: bytes) -> None:
        """Write a file under another name, and rename it when it is complete."""
        path = self._path(key)
        self._check_mounted()
        path.parent.mkdir(exist_ok=True)
        unfinished = _unfinished(path)
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        # The names too: the task that refers to it may survive a crash of this machine. Both each time: who
        # made the directory may have died before it was synced.
        _sync_directory(path.parent)
        _sync_directory(self._directory)

    def get(self, key: str) -> bytes | None:
        """What is in the file."""
        path = self._path(key)
        # Twice: between a read and the check the directory may be mounted.
        for _ in range(2):
            try:
                return path.read_bytes()
            except FileNotFoundError:
                self._check_mounted()
        return None

    def delete(self, key: str) -> None:
        """Delete the file, and what a process that died while it wrote has left of it."""
        path = self._path(key)
        self._check_mounted()
        for one in (path, _unfinished(path)):
            one.unlink(missing_ok=True)

    def _check_mounted(self) -> None:
        marker = self._directory / _MARKER
        if not marker.exists():
            reason = "not mounted, or never made by DirectoryPayloads(…).create()"
            raise FileNotFoundError(f"{reason}: there is no {marker}")

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(f"key must have only letters, digits, - and _, got {key!r:.200}")
        # 256 directories: some file systems are slow with many files in one.
        return self._directory / key[:2] / key


class SqlPayloads:
    """A row for each content, in a table of a database that all processes use; created when it is needed.

    Examples:
        >>> payloads = SqlPayloads(engine)
        >>> payloads.put("an-order", b"{}")
        >>> payloads.get("an-order")
        b'{}'
    """

    def __init__(self, engine: Engine, *, table: str = "conquiet_task_payloads") -> None:
        check_table_name(table)
        self._engine = engine
        self._is_created = False
        self._table = Table(
            table,
            MetaData(),
            Column("payload_key", String(128), primary_key=True),
            Column("content", LargeBinary().with_variant(LONGBLOB(), "mysql", "mariadb"), nullable=False),
            Column("stored_at_ms", BigInteger, nullable=False, index=True),
            **MYSQL_OPTIONS,
        )

    def put(self, key: str, content: bytes) -> None:
        """Insert a row."""
        self._create_table()
        row = {"payload_key": key, "content": content, "stored_at_ms": clock.now_ms()}
        with self._engine.begin() as connection:
            connection.execute(insert(self._table), row)

    def get(self, key: str) -> bytes | None:
        """What is in the row."""
        self._create_table()
        wanted = select(self._table.c.content).where(self._table.c.payload_key == key)
        with self._engine.connect() as connection:
            found = connection.execute(wanted).scalar()
        return None if found is None else bytes(found)

    def delete(self, key: str) -> None:
        """Delete the row."""
        self._create_table()
        with self._engine.begin() as connection:
            connection.execute(delete(self._table).where(self._table.c.payload_key == key))

    def _create_table(self) -> None:
        if not self._is_created:
            create_table(self._table, self._engine)
            self._is_created = True


def _unfinished(path: Path) -> Path:
    return path.with_name(f"{path.name}.unfinished")


def _sync_directory(directory: Path) -> None:
    opened = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
