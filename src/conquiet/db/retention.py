"""Deletes rows of conquiet's own tables that are old enough."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Column, delete, select

from conquiet.db.lock_timeout import lock_timeout
from conquiet.db.session import DbSession
from conquiet.db.table_creation import now_ms

#: Rows that are deleted in one transaction.
PURGE_STEP = 1_000


def check_keep_for(keep_for: object) -> None:
    """Refuse what is no time above 0; `None` keeps rows for ever."""
    if keep_for is not None and not (isinstance(keep_for, timedelta) and keep_for > timedelta(0)):
        raise ValueError(f"keep_for must be a timedelta above 0 or None, got {keep_for!r}")


def delete_oldest(
    session: DbSession, key: Column[str], written_at_ms: Column[int], older_than: timedelta, most: int
) -> int:
    """Delete up to so many rows that are older, the oldest first; returns how many were found."""
    is_older = written_at_ms < now_ms() - int(older_than.total_seconds() * 1000)
    # In the same order for all: of two that purge at once one waits for the other, and none forever.
    keys = sorted(session.scalars(select(key).where(is_older).order_by(written_at_ms).limit(most)))
    if keys:
        with lock_timeout(session, 1):
            session.execute(delete(key.table).where(key.in_(keys), is_older))
    return len(keys)
