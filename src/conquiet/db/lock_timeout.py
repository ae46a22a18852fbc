"""A shorter lock timeout for some statements of a transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import text

from conquiet.db.session import DbSession

#: In ms; 0 is none.
_SHORTEN = text(
    "SELECT s.setting, set_config('lock_timeout', CASE WHEN CAST(s.setting AS integer) BETWEEN 1 AND :most "
    "THEN s.setting ELSE CAST(:most AS text) END, true) FROM pg_settings s WHERE s.name = 'lock_timeout'"
)


@contextmanager
def lock_timeout(session: DbSession, seconds: int) -> Iterator[None]:
    """Within the block wait no longer than this for other transactions; SQLite has its own timeout."""
    match session.connection.dialect.name:
        case "postgresql":
            before = session.execute(_SHORTEN, {"most": seconds * 1000}).scalar_one()
            yield
            # Not after an error: the setting ends with the transaction.
            session.execute(text("SELECT set_config('lock_timeout', :before, true)"), {"before": before})
        case "mysql" | "mariadb":
            before = int(session.scalar(text("SELECT @@innodb_lock_wait_timeout")))
            session.execute(text(f"SET SESSION innodb_lock_wait_timeout = {min(before, seconds)}"))
            try:
                yield
            finally:
                # The connection goes back to its pool.
                if not session.connection.invalidated:
                    session.execute(text(f"SET SESSION innodb_lock_wait_timeout = {before}"))
        case _:
            yield
