"""A handler that a client of Spark Connect sends to the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from sqlalchemy import text

from conquiet.db import DbSession


def keep_numbers(rows: Iterator[dict[str, Any]], session: DbSession) -> None:
    """One row for each message."""
    values = [{"number": json.loads(row["data"])["number"]} for row in rows]
    session.connection.execute(text("INSERT INTO numbers VALUES (:number)"), values)
