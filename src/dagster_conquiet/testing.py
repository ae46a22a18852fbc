"""run_job: a job of a code location, run once in the process of a test, on the test's server and database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg
from sqlalchemy import Engine

from conquiet.consume.report import COUNTS
from dagster_conquiet.resources import DatabaseResource, RedisStreamsResource, ResourceKeys


@dataclass(frozen=True, slots=True)
class JobRun:
    """How a run ended."""

    result: dg.ExecuteInProcessResult

    @property
    def is_success(self) -> bool:
        return self.result.success

    @property
    def counts(self) -> dict[str, int]:
        """What its drains did, by the names of `DrainReport`; of several, together."""
        counts: dict[str, int] = {}
        for event in self.result.all_events:
            # Of an asset its output has the same metadata as its materialisation.
            metadata: Mapping[str, Any] = {}
            if event.is_successful_output:
                metadata = event.step_output_data.metadata
            if metadata.keys() >= {*COUNTS}:
                for name in COUNTS:
                    counts[name] = counts.get(name, 0) + int(metadata[name].value)
        return counts


def run_job(
    defs: dg.Definitions,
    job: str,
    url: str,
    database: Engine | str,
    *,
    keys: ResourceKeys | None = None,
    run_config: Mapping[str, Any] | None = None,
    instance: dg.DagsterInstance | None = None,
    raise_on_error: bool = True,
) -> JobRun:
    """Run a job once, and return how it ended; neither its server nor its database is the one of `defs`.

    Args:
        url: the server, such as `conquiet_server.url`.
        database: an engine or a URL; an engine's database must be one that another connection can open.
        keys: the names of the two resources, if they are others.
        raise_on_error: raise what a step raised.

    Examples:
        >>> @dc.drain_asset(dc.DrainSpec(stream="from-dagster", group="billing"))
        ... def bills(msg, session):
        ...     bill(msg, session)
        >>> defs = dg.Definitions(
        ...     assets=[bills],
        ...     jobs=[dg.define_asset_job("bill_orders", [bills])],
        ...     resources={
        ...         "redis_streams": dc.RedisStreamsResource(url=dg.EnvVar("REDIS_URL")),
        ...         "database": dc.DatabaseResource(url=dg.EnvVar("DATABASE_URL")),
        ...     },
        ... )
        >>> config = QueueConfig("from-dagster", "billing", "test")
        >>> with RedisStreamsQueue.from_url(server.url, config) as orders:
        ...     entry_ids = orders.enqueue_many([{"order_id": 7}, {"order_id": 8}])
        >>> run_job(defs, "bill_orders", server.url, engine).counts["handled"]
        2
    """
    names = keys or ResourceKeys()
    database_url = (
        database if isinstance(database, str) else database.url.render_as_string(hide_password=False)
    )
    resources = {
        names.redis: RedisStreamsResource(url=url),
        names.database: DatabaseResource(url=database_url),
    }
    # The one of the caller stays open.
    own = None if instance else dg.DagsterInstance.ephemeral()
    try:
        result = defs.resolve_job_def(job).execute_in_process(
            resources=resources,
            run_config=dict(run_config or {}),
            instance=instance or own,
            raise_on_error=raise_on_error,
        )
    finally:
        if own is not None:
            own.dispose()
    return JobRun(result)
