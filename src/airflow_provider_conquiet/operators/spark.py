"""SparkPublishOperator: a job of `conquiet.spark.jobs`, submitted without a secret on its command line."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import quote

from airflow_provider_conquiet.airflow_names import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    mask_secret,
)
from airflow_provider_conquiet.arguments import failing_at_once
from airflow_provider_conquiet.hooks.database import mask_password
from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.lineage import Lineage
from airflow_provider_conquiet.links import DocumentationLink
from airflow_provider_conquiet.reports import Report, update_outlets
from airflow_provider_conquiet.task_try import TaskTry, task_span
from conquiet.errors import MissingExtraError
from conquiet.payload import decode_payload
from conquiet.spark.jobs import (
    DATABASE_URL_VARIABLE,
    REDIS_URL_VARIABLE,
    ExitCode,
    JobError,
    application_of,
    arguments_of,
    check_arguments,
)
from conquiet.tracing import headers

try:
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
except ModuleNotFoundError as error:
    provider = "Airflow's provider for Spark"
    raise MissingExtraError("SparkPublishOperator", missing=provider, extra="airflow-spark") from error

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context


class SparkPublishOperator(SparkSubmitOperator):
    """Submits a job that publishes rows to a topic, and returns its report; a retry publishes nothing twice.

    The job reads its secrets from a file that only this task's user can read and that is deleted afterwards;
    with `deploy_mode="cluster"` spark-submit ships it to the driver. The arguments of `SparkSubmitOperator`,
    but for `application` and `application_args`, and:

    Args:
        job: "publish", or "aggregate".
        options: of the job, by their names in its command line: `{"table": "orders", "in": "database"}`.
        to_topic, to_stream: one of the two.
        dedupe_id: names the write instead of the task instance.
        is_deduped: `False` publishes on every try.
        secrets: "none" if the driver has its secrets by other means, as from a Kubernetes secret.
        redis_streams_conn_id: a connection of type `redis_streams`; the database that it names is the job's.
        db_conn_id: the connection of the job's database, instead of that.

    Examples:
        >>> with DAG("publish_orders", schedule="@daily", catchup=False):
        ...     published = SparkPublishOperator(
        ...         task_id="publish", options={"table": "orders", "in": "database"}, to_topic="orders"
        ...     )
    """

    #: What the task did, for OpenLineage.
    lineage: Lineage | None = None

    operator_extra_links = (*SparkSubmitOperator.operator_extra_links, DocumentationLink())
    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields,
        "options",
        "to_topic",
        "to_stream",
        "dedupe_id",
        "redis_streams_conn_id",
        "db_conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"options": "json"}
    ui_color = "#f5e3d0"

    def __init__(
        self,
        *,
        job: Literal["publish", "aggregate"] = "publish",
        options: Mapping[str, Any] | None = None,
        to_topic: str | None = None,
        to_stream: str | None = None,
        dedupe_id: str | None = None,
        is_deduped: bool = True,
        secrets: Literal["file", "none"] = "file",
        conn_id: str = "spark_default",
        deploy_mode: str | None = None,
        redis_streams_conn_id: str = RedisStreamsHook.default_conn_name,
        db_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        for name in ("application", "application_args"):
            if name in kwargs:
                raise ValueError(f"the job is the application; {name} is not for the user to say")
        kwargs.setdefault("name", f"conquiet-{job}")
        super().__init__(application=application_of(job), conn_id=conn_id, deploy_mode=deploy_mode, **kwargs)
        self.job = job
        self.options = dict(options or {})
        self.to_topic = to_topic
        self.to_stream = to_stream
        self.dedupe_id = dedupe_id
        self.is_deduped = is_deduped
        self.secrets = secrets
        self.spark_conn_id = conn_id
        self.deploy_mode = deploy_mode
        self.redis_streams_conn_id = redis_streams_conn_id
        self.db_conn_id = db_conn_id
        if "{{" not in json.dumps([self.options, to_topic, to_stream], default=str):
            check_arguments(job, self._job_arguments())

    def get_openlineage_facets_on_complete(self, _task_instance: object) -> OperatorLineage[Any, Any] | None:
        """Outputs and counts, for Airflow's OpenLineage provider."""
        return None if self.lineage is None else self.lineage.facets()

    def execute(self, context: Context) -> Report:  # type: ignore[override]  # it returns nothing there
        """Submit the job, wait for its end, and return its report."""
        report_key = f"conquiet:spark:report:{TaskTry.of_context(context).task_instance}"
        with ExitStack() as stack:
            stack.enter_context(task_span(context))
            hook = stack.enter_context(
                RedisStreamsHook(self.redis_streams_conn_id, db_conn_id=self.db_conn_id)
            )
            secrets = stack.enter_context(self._secrets_file(hook))
            with failing_at_once(JobError):
                self._prepare(context, report_key, secrets)
            # An earlier try whose worker died may have left one: it is not this job's report.
            hook.get_conn().delete(report_key)
            try:
                super().execute(context)
            except Exception as error:
                raise _explained(error, _take_report(hook, report_key)) from error
            report = _take_report(hook, report_key)
            if report is None:
                raise AirflowException(f"the job ended and left no report in {report_key!r}")
            if report["exit_code"]:
                # In cluster mode spark-submit may return 0 though its driver failed.
                failure = AirflowException(f"the job ended with exit code {report['exit_code']}")
                raise _explained(failure, report)
            name = str(self.to_topic or self.to_stream)
            hook.record_output(name)
            uri = hook.asset_uri(name)
            update_outlets(context, self.outlets, uri, report)
            self.lineage = Lineage(outputs={uri: int(report.get("messages") or 0)})
            return report

    def _prepare(self, context: Context, report_key: str, secrets: Path | None) -> None:
        options: dict[str, Any] = {"report": f"stream:{report_key}"}
        if self.is_deduped:
            options["dedupe_id"] = self.dedupe_id or TaskTry.of_context(context).dedupe_id
        if secrets is not None:
            options["secrets"] = secrets
            mode = self.deploy_mode
            if mode is None:
                # The Spark provider goes on without a connection too.
                with suppress(AirflowNotFoundException):
                    mode = RedisStreamsHook.get_connection(self.spark_conn_id).extra_dejson.get("deploy-mode")
            if mode == "cluster":
                self.files = ",".join(filter(None, [self.files, str(secrets)]))
        if self.to_topic is not None:
            options["traceparent"] = headers().get("traceparent")
        self.application_args = self._job_arguments() + arguments_of(options)
        check_arguments(self.job, self.application_args)

    def _job_arguments(self) -> list[str]:
        return arguments_of(self.options | {"to_topic": self.to_topic, "to_stream": self.to_stream})

    @contextmanager
    def _secrets_file(self, hook: RedisStreamsHook) -> Iterator[Path | None]:
        if self.secrets == "none":
            yield None
            return
        with failing_at_once():
            values = {REDIS_URL_VARIABLE: hook.url}
            if hook.server.password:
                # As it stands in the URL; Airflow masks it only as it was entered.
                mask_secret(quote(hook.server.password, safe=""))
            if hook.database_url is not None:
                mask_password(hook.database_url)
                values[DATABASE_URL_VARIABLE] = hook.database_url
        # Not by `env_vars`: on YARN and Kubernetes the Spark provider puts those on the command line.
        with tempfile.TemporaryDirectory(prefix="conquiet-spark-") as directory:
            path = Path(directory) / f"{Path(directory).name}.json"
            with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "w") as file:
                json.dump(values, file)
            yield path


def _take_report(hook: RedisStreamsHook, key: str) -> Report | None:
    client = hook.get_conn()
    entries: Any = client.xrevrange(key, count=1)
    client.delete(key)
    try:
        report: Report | None = decode_payload(entries[0][1][b"data"]) if entries else None
    except (KeyError, ValueError):
        # Whatever it is, it is no report of a job.
        return None
    return report


def _explained(error: Exception, report: Report | None) -> Exception:
    if report is None or "error" not in report:
        return error
    # A job of a later version may have codes of its own.
    if any(code.is_mistake for code in ExitCode if code == report.get("exit_code")):
        return AirflowFailException(f"{report['error']} (a retry would fail in the same way)")
    return AirflowException(report["error"])
