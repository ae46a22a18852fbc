"""The shop, and beside it a job whose first step kills itself in the middle of a message."""

from __future__ import annotations

from dataclasses import replace

import dagster as dg

from dagster_conquiet import ResourceKeys, build_backlog_sensor, build_drain_job
from dagster_defs import definitions as shop
from tests.with_dagster.jobs_to_rebuild import resources, spec

of_tests = ResourceKeys(redis="redis_streams_of_tests", database="database_of_tests")
die_once = replace(spec("die_once"), resources=of_tests)
drain_and_die = build_drain_job(die_once, name="drain_and_die", tags={"dagster/max_retries": "1"})
sensor = build_backlog_sensor(
    die_once, drain_and_die, minimum_interval_seconds=5, default_status=dg.DefaultSensorStatus.RUNNING
)

defs = dg.Definitions.merge(
    shop.defs,
    dg.Definitions(
        jobs=[drain_and_die],
        sensors=[sensor],
        resources={f"{name}_of_tests": resource for name, resource in resources().items()},
    ),
)
