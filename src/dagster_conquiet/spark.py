"""Assets that Spark publishes: a job of `conquiet.spark.jobs`, launched through Pipes over a stream."""

# No `from __future__ import annotations` here: Dagster reads the type of the context.

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import dagster as dg

from conquiet.spark.jobs import (
    DATABASE_URL_VARIABLE,
    REDIS_URL_VARIABLE,
    ExitCode,
    arguments_of,
    check_arguments,
)
from conquiet.tracing import headers
from dagster_conquiet.asset_keys import plain_name, stream_asset_key
from dagster_conquiet.described import code_references_of_caller
from dagster_conquiet.pipes.reader import RedisStreamMessageReader
from dagster_conquiet.resources import ResourceKeys
from dagster_conquiet.steps.attempts import Attempt, attempt_of
from dagster_conquiet.steps.metadata import page_link


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkJobSpec:
    """Which job publishes what to where.

    Examples:
        >>> spec = SparkJobSpec(to_topic="orders", options={"table": "orders", "in": "database"})
        >>> spec.destination, spec.reads_database
        ('orders', True)
    """

    #: The topic; for a plain stream, `to_stream` in `options`.
    to_topic: str | None = None
    job: Literal["publish", "aggregate"] = "publish"
    #: By their names in the job's command line: `{"table": "orders", "in": "database"}`.
    options: Mapping[str, Any] = field(default_factory=dict)
    #: The command and its own arguments, `("spark-submit", "--master", "spark://…")`; the driver runs here.
    submit: tuple[str, ...] = ("spark-submit",)
    resources: ResourceKeys = field(default_factory=ResourceKeys)

    def __post_init__(self) -> None:
        check_arguments(self.job, self.arguments)

    @property
    def arguments(self) -> list[str]:
        return arguments_of({**self.options, "to_topic": self.to_topic})

    @property
    def destination(self) -> str:
        """The topic or stream that it publishes to."""
        return str(self.to_topic or self.options.get("to_stream"))

    @property
    def reads_database(self) -> bool:
        """Whether the job needs the database's URL."""
        return self.options.get("in") == "database"


def build_spark_asset(
    spec: SparkJobSpec, *, key: dg.AssetKey | str | list[str] | None = None, **options: Any
) -> dg.AssetsDefinition:
    """An asset that is materialised by the job; its key is that of the topic or stream unless given.

    Its metadata are those of the job's report. A retry of the step or of its run publishes nothing twice.
    The URLs of Redis and of the database reach the job by its environment, never by its command line.

    Examples:
        >>> spec = SparkJobSpec(to_topic="orders", options={"table": "orders", "in": "database"})
        >>> asset = build_spark_asset(spec, group_name="shop")
    """
    options.setdefault("kinds", {"spark", "redis"})
    options.setdefault("description", f"What Spark's job {spec.job!r} publishes to {spec.destination!r}.")
    options.setdefault("pool", f"conquiet_spark_{plain_name(spec.destination)}")
    kind = "stream" if spec.to_topic is None else "topic"
    shown = {kind: spec.destination, **page_link(spec.destination)}
    options["metadata"] = shown | code_references_of_caller() | (options.get("metadata") or {})
    resources = {spec.resources.redis, *({spec.resources.database} if spec.reads_database else ())}

    def published(context: dg.AssetExecutionContext) -> Any:
        redis_streams = spec.resources.redis_of(context)
        secrets = {REDIS_URL_VARIABLE: redis_streams.url_with_files()}
        if spec.reads_database:
            secrets[DATABASE_URL_VARIABLE] = spec.resources.database_of(context).url
        reader = RedisStreamMessageReader(redis_streams)
        pipes = dg.PipesSubprocessClient(env=secrets, message_reader=reader)
        attempt = attempt_of(context)
        with attempt.span():
            completed = pipes.run(context=context, command=_command(spec, attempt))
        reports = completed.get_custom_messages()
        no_report = {"exit_code": int(ExitCode.FAILED), "error": "the job sent no report"}
        report: dict[str, Any] = reports[-1] if reports else no_report
        if report["exit_code"]:
            is_mistake = ExitCode(report["exit_code"]).is_mistake
            raise dg.Failure(report["error"], metadata=report, allow_retries=not is_mistake)
        return completed.get_materialize_result()

    asset: dg.AssetsDefinition = dg.asset(
        key=key or stream_asset_key(spec.destination), required_resource_keys=resources, **options
    )(published)
    return asset


def _command(spec: SparkJobSpec, attempt: Attempt) -> list[str]:
    command, *its_arguments = spec.submit
    # A pip-installed Spark is beside Python, which need not be on the PATH; a path stays what it is.
    beside_python = Path(sys.executable).parent / command
    path = shutil.which(command) or (str(beside_python) if beside_python.exists() else command)
    added: dict[str, Any] = {}
    if "dedupe_id" not in spec.options:
        added["dedupe_id"] = f"dagster:{attempt.work_id}"
    if spec.to_topic is not None:
        added["traceparent"] = headers().get("traceparent")
    script = Path(__file__).with_name("pipes") / "spark_job.py"
    return [path, *its_arguments, str(script), spec.job, *spec.arguments, *arguments_of(added)]
