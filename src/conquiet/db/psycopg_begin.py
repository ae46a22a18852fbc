"""A statement of psycopg in one round trip with the BEGIN before it, which psycopg would wait for first."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from conquiet.db.table_creation import digest_of

if TYPE_CHECKING:
    from sqlalchemy import Dialect

_PARAMETER = re.compile(r"%\((\w+)\)s")
#: The prepared statement is gone, as by psycopg's DEALLOCATE ALL after a rollback; it is there already, as
#: behind a pooler; its plan is for another result.
_NOT_AS_PREPARED = frozenset((b"26000", b"42P05", b"0A000"))

#: By connection the names of what is prepared there, by whichever `Inbox`; `False` is for what cannot be.
_prepared: WeakKeyDictionary[Any, dict[bytes, bool]] = WeakKeyDictionary()


class StatementWithBegin:
    """One statement, prepared once for each connection and sent together with the BEGIN."""

    def __init__(self, text: str) -> None:
        self._parameters = [*dict.fromkeys(_PARAMETER.findall(text))]
        numbers = {name: f"${number}" for number, name in enumerate(self._parameters, 1)}
        numbered = _PARAMETER.sub(lambda found: numbers[found[1]], text).replace("%%", "%")
        self._text = numbered.encode()
        self._name = f"conquiet_{digest_of(text)[:32]}".encode()

    @staticmethod
    def is_for(dialect: Dialect) -> bool:
        """Whether the driver is psycopg, with a libpq that has pipelines."""
        return dialect.driver == "psycopg" and not dialect.is_async and _has_pipeline()

    def execute(self, driver: Any, values: Mapping[str, Any]) -> bool:
        """Execute it as the first statement of a transaction, without what it returns.

        Returns `False`, with nothing done, where psycopg must do it: in a transaction, or on a connection
        that is set up in another way than usual. Errors are psycopg's.
        """
        parameters = [values[name] for name in self._parameters]
        if not _is_as_expected(driver) or not all(map(_is_plain, parameters)):
            return False
        prepared = _prepared.setdefault(driver, {})
        is_prepared = prepared.get(self._name)
        if is_prepared is False:
            return False
        pgconn = driver.pgconn
        pgconn.enter_pipeline_mode()
        pgconn.send_query_params(b"BEGIN", None)
        if not is_prepared:
            pgconn.send_prepare(self._name, self._text)
        pgconn.send_query_prepared(self._name, [str(value).encode() for value in parameters])
        pgconn.pipeline_sync()
        try:
            done, failed = driver.wait(_replies(pgconn))
        except BaseException:
            # Ctrl-C, or lost: what is sent next would be part of the pipeline, of which nobody reads the end.
            driver.close()
            raise
        # Prepared also if it failed then: that is undone by no rollback.
        if done > 1:
            prepared[self._name] = True
        if failed is None:
            pgconn.exit_pipeline_mode()
            return True
        self._undo(driver, failed)
        # It was gone: the next one prepares it again. There without our doing: psycopg does it from now on.
        if prepared.pop(self._name, None) is None:
            prepared[self._name] = False
        return False

    @staticmethod
    def _undo(driver: Any, failed: Any) -> None:
        """Raise the error, or end the transaction if it is because of how the statement was sent."""
        from psycopg import errors, pq

        if driver.pgconn.status == pq.ConnStatus.OK:
            driver.pgconn.exit_pipeline_mode()
        if failed.error_field(pq.DiagnosticField.SQLSTATE) not in _NOT_AS_PREPARED:
            raise errors.error_from_result(failed, encoding="utf-8")
        driver.rollback()


@cache
def _psycopg() -> ModuleType:
    import psycopg

    return psycopg


@cache
def _has_pipeline() -> bool:
    return bool(_psycopg().capabilities.has_pipeline())


def _is_as_expected(driver: Any) -> bool:
    psycopg = _psycopg()
    # Others, as those of tracing libraries, want to see each statement.
    if type(driver) is not psycopg.Connection or driver.cursor_factory is not psycopg.Cursor:
        return False
    pgconn, pq = driver.pgconn, psycopg.pq
    return (
        pgconn.transaction_status == pq.TransactionStatus.IDLE
        and pgconn.pipeline_status == pq.PipelineStatus.OFF
        and not driver.autocommit
        and driver.isolation_level is None
        and driver.read_only is None
        and driver.deferrable is None
        # `None` forbids prepared statements, as some poolers need it.
        and driver.prepare_threshold is not None
        and pgconn.parameter_status(b"client_encoding") == b"UTF8"
    )


def _is_plain(value: object) -> bool:
    """Whether it is sent as it is; a text with a NUL is an error, which is psycopg's to raise."""
    return type(value) is int or (type(value) is str and "\0" not in value)


def _replies(pgconn: Any) -> Generator[Any, Any, tuple[int, Any]]:
    """For `Connection.wait`: send all; how many were executed before the first error, and that result."""
    from psycopg import OperationalError
    from psycopg.pq import ConnStatus, ExecStatus
    from psycopg.waiting import Ready, Wait

    while pgconn.flush():
        if (yield Wait.RW) & Ready.R:
            pgconn.consume_input()
    done, failed = 0, None
    while True:
        while pgconn.is_busy():
            yield Wait.R
            pgconn.consume_input()
        result = pgconn.get_result()
        status = None if result is None else result.status
        if status == ExecStatus.FATAL_ERROR:
            failed = failed or result
        elif status in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
            done += 1
        if pgconn.status == ConnStatus.BAD and failed is None:
            raise OperationalError("the connection was lost")
        if status == ExecStatus.PIPELINE_SYNC or pgconn.status == ConnStatus.BAD:
            return done, failed
