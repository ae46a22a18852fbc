"""conquiet's tasks; `PEERS_SESSION=1` has the effect in the transaction of the inbox row and the result."""

from __future__ import annotations

import os
import sys

from sqlalchemy import text

from benchmarks.peers.systems import effects
from conquiet import DbSession
from conquiet.tasks import TaskApp

has_session = os.environ.get("PEERS_SESSION") == "1" and bool(effects.DATABASE_URL)
_url = effects.DATABASE_URL.replace("postgresql://", "postgresql+psycopg://")
app = TaskApp(
    effects.REDIS_URL,
    database=(f"{_url}?timeout=30" if _url.startswith("sqlite") else _url) if has_session else None,
)

if has_session:

    @app.task(name="book")
    def book_in_session(number: int, session: DbSession) -> None:
        """One task, in one transaction."""
        effects.work()
        session.execute(text("INSERT INTO effects VALUES (:number)"), {"number": number})
        effects.work()
        effects.done()

else:

    @app.task(name="book")
    def book(number: int) -> None:
        """One task."""
        effects.do(number)


if __name__ == "__main__":
    for each in range(int(sys.argv[1])):
        app.enqueue("book", {"number": each})
