"""Which errors say that the database is unavailable."""

from __future__ import annotations

import sqlite3

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import StaticPool

from conquiet.db import is_refused
from conquiet.db.outage_codes import is_refusal


class _PostgresError(Exception):
    sqlstate = "25006"


class _ConnectorError(Exception):
    errno, sqlstate = 1290, "HY000"


@pytest.mark.parametrize(
    "code",
    ["25006", "53100", "53300", "55P03", "57P01", "57P03", "08006", 1290, 1114, 1021, 1205, 1040, 1053],
)
def test_a_database_that_cannot_write_now_is_unavailable(code: str | int):
    assert is_refusal(code)


@pytest.mark.parametrize(
    "code", ["40001", "40P01", "57014", "23505", "42601", "53400", 1213, 1020, 1062, 1064, None]
)
def test_deadlocks_timeouts_of_a_statement_and_wrong_statements_are_failures_of_their_message(
    code: str | int | None,
):
    assert not is_refusal(code)


@pytest.mark.parametrize(
    "original",
    [
        _PostgresError("cannot execute INSERT in a read-only transaction"),
        _ConnectorError("running with --read-only"),
        Exception(1290, "the server is running with the --read-only option"),
        Exception({"S": "ERROR", "C": "53100", "M": "could not extend file"}),
    ],
)
def test_the_code_is_found_in_the_errors_of_every_driver_behind_an_error_of_the_handler(original: Exception):
    def handler() -> None:
        try:
            raise OperationalError("INSERT", {}, original)
        except OperationalError as error:
            raise ValueError("the handler's own") from error

    with pytest.raises(ValueError, match="the handler's own") as raised:
        handler()

    assert is_refused(raised.value)


@pytest.mark.parametrize("setting", ["query_only = ON", "max_page_count = 1"])
def test_a_sqlite_that_is_full_or_read_only_is_unavailable(setting: str):
    engine = create_engine("sqlite://", poolclass=StaticPool)
    with engine.connect() as connection:
        connection.execute(text("CREATE TABLE effects (note TEXT)"))
        connection.commit()
        connection.execute(text(f"PRAGMA {setting}"))

        with pytest.raises(OperationalError) as raised:
            connection.execute(text("INSERT INTO effects VALUES (:note)"), {"note": "x" * 100_000})

    assert is_refused(raised.value)
    engine.dispose()


def test_a_sqlite_that_is_locked_is_unavailable_and_a_snapshot_that_is_too_old_is_a_failure():
    assert is_refusal(-sqlite3.SQLITE_BUSY)
    assert is_refusal(-sqlite3.SQLITE_IOERR_FSYNC)
    assert not is_refusal(-sqlite3.SQLITE_BUSY_SNAPSHOT)
    assert not is_refusal(-sqlite3.SQLITE_CONSTRAINT_UNIQUE)
