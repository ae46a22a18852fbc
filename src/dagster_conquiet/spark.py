"""Assets that Spark publishes: a job of `conquiet.spark.jobs`, launched through Pipes over a stream."""

# No `from __future__ import annotations` here: Dagster reads the type of the context.

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

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
from dagster_conquiet.attempts import attempt_of
from dagster_conquiet.draining import database_of, redis_of
from dagster_conquiet.pipes.reader import RedisStreamMessageReader
from dagster_conquiet.resources import RedisStreamsResource
from dagster_conquiet.specs import ResourceKeys
from dagster_conquiet.traces import step_span


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkJobSpec:
    """Which job publishes what to where."""

    #: The topic; for a plain stream, `options` say `to_stream`.
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
        """The job's command line."""
        return arguments_of({**self.options, "to_topic": self.to_topic})

    @property
    def place(self) -> str:
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
    """
    options.setdefault("kinds", {"spark", "redis"})
    options.setdefault("pool", f"conquiet_spark_{plain_name(spec.place)}")
    needed = {spec.resources.redis, *({spec.resources.database} if spec.reads_database else ())}

    def published(context: dg.AssetExecutionContext) -> Any:
        redis_streams = redis_of(context, spec.resources)
        pipes = dg.PipesSubprocessClient(
            env=_secrets(context, spec, redis_streams),
            message_reader=RedisStreamMessageReader(redis_streams),
        )
        with step_span(context):
            done = pipes.run(context=context, command=_command(context, spec))
        _raise_failure(done.get_custom_messages())
        return done.get_materialize_result()

    made: dg.AssetsDefinition = dg.asset(
        key=key or stream_asset_key(spec.place), required_resource_keys=needed, **options
    )(published)
    return made


def _command(context: dg.AssetExecutionContext, spec: SparkJobSpec) -> list[str]:
    command, *its_arguments = spec.submit
    # A pip-installed Spark is beside Python, which need not be on the PATH.
    beside_python = Path(sys.executable).with_name(command)
    found = shutil.which(command) or (str(beside_python) if beside_python.exists() else command)
    write = f"dagster:{attempt_of(context).work_id}"
    added: dict[str, Any] = {} if "dedupe_id" in spec.options else {"dedupe_id": write}
    if spec.to_topic is not None:
        added["traceparent"] = headers().get("traceparent")
    script = Path(__file__).with_name("pipes") / "spark_job.py"
    return [found, *its_arguments, str(script), spec.job, *spec.arguments, *arguments_of(added)]


def _secrets(
    context: dg.AssetExecutionContext, spec: SparkJobSpec, redis_streams: RedisStreamsResource
) -> dict[str, str]:
    secrets = {REDIS_URL_VARIABLE: _url_with_files(redis_streams)}
    if spec.reads_database:
        secrets[DATABASE_URL_VARIABLE] = database_of(context, spec.resources).url
    return secrets


def _url_with_files(redis_streams: RedisStreamsResource) -> str:
    files = {
        "ssl_ca_certs": redis_streams.tls_ca_file,
        "ssl_certfile": redis_streams.tls_cert_file,
        "ssl_keyfile": redis_streams.tls_key_file,
    }
    given, url = {name: path for name, path in files.items() if path}, redis_streams.server_url()
    return f"{url}{'&' if '?' in url else '?'}{urlencode(given)}" if given else url


def _raise_failure(reports: Any) -> None:
    nothing = {"exit_code": int(ExitCode.FAILED), "error": "the job told nothing"}
    report: dict[str, Any] = reports[-1] if reports else nothing
    if report["exit_code"]:
        is_mistake = ExitCode(report["exit_code"]).is_mistake
        raise dg.Failure(report["error"], metadata=report, allow_retries=not is_mistake)
