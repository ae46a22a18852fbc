"""The shop's tasks: `conquiet worker dagster_defs.tasks:app` runs them, beside Dagster.

The worker needs CONQUIET_REDIS_URL and CONQUIET_DATABASE_URL, the same that Dagster has.
"""

from __future__ import annotations

from sqlalchemy import func, select

from conquiet import DbSession
from conquiet.tasks import TaskApp
from dagster_defs.billing import bills

app = TaskApp()


@app.task(name="shop.sum_bills")
def sum_bills(session: DbSession, at_least: int = 0) -> dict[str, int]:
    """How many bills there are, and their sum."""
    wanted = select(func.count(), func.coalesce(func.sum(bills.c.cents), 0)).where(bills.c.cents >= at_least)
    count, cents = session.execute(wanted).one()
    return {"bills": count, "cents": cents}
