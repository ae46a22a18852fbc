"""Jobs that a subprocess can find by name; what they drain stands in the environment."""

from __future__ import annotations

import os

import dagster as dg

from dagster_conquiet import (
    DatabaseResource,
    DrainConfig,
    DrainSpec,
    RedisStreamsResource,
    TaskSpec,
    TopicDrainSpec,
    build_drain_job,
    build_task_asset,
    build_topic_drain_asset,
)

HANDLERS = "tests.with_dagster.handlers"


def resources() -> dict[str, object]:
    return {
        "redis_streams": RedisStreamsResource(url=dg.EnvVar("CONQUIET_TEST_REDIS")),
        "database": DatabaseResource(url=dg.EnvVar("CONQUIET_TEST_DATABASE")),
    }


def spec(handler: str) -> DrainSpec:
    return DrainSpec(
        stream=os.environ["CONQUIET_TEST_STREAM"],
        group="billing",
        handler=f"{HANDLERS}:{handler}",
        config=DrainConfig(idle_ms=100),
    )


def dying_job() -> dg.JobDefinition:
    """Each step in its own process; a step that dies is tried again."""
    return build_drain_job(
        spec("die_once"),
        retry_policy=dg.RetryPolicy(max_retries=1),
        resource_defs=resources(),
        executor_def=dg.multiprocess_executor,
    )


def dying_job_without_retry() -> dg.JobDefinition:
    """Each step in its own process; a step that dies fails the run."""
    return build_drain_job(spec("die_once"), resource_defs=resources(), executor_def=dg.multiprocess_executor)


def dying_topic_job() -> dg.JobDefinition:
    """One partition of a topic; a step that dies is tried again."""
    topic = TopicDrainSpec(
        topic=os.environ["CONQUIET_TEST_TOPIC"],
        partitions=2,
        group="billing",
        handler=f"{HANDLERS}:die_once",
    )
    asset = build_topic_drain_asset(topic, retry_policy=dg.RetryPolicy(max_retries=1))
    job = dg.define_asset_job("drain_topic", [asset], executor_def=dg.multiprocess_executor)
    return dg.Definitions(assets=[asset], jobs=[job], resources=resources()).resolve_job_def("drain_topic")


def task_job() -> dg.JobDefinition:
    """A step in its own process that has a task kill it; it is tried again."""
    task = TaskSpec(task="shop.kill_caller", namespace=os.environ["CONQUIET_TEST_STREAM"])
    asset = build_task_asset(
        task,
        key="killed",
        args=lambda context: {"pid": os.getpid()},
        retry_policy=dg.RetryPolicy(max_retries=1),
    )
    job = dg.define_asset_job("have_task_done", [asset], executor_def=dg.multiprocess_executor)
    return dg.Definitions(assets=[asset], jobs=[job], resources=resources()).resolve_job_def("have_task_done")
