"""From a command line to a report and an exit code: what every job does."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conquiet.errors import text_of
from conquiet.queue import open_client
from conquiet.spark.jobs.command_line import parse
from conquiet.spark.jobs.credentials import Credentials
from conquiet.spark.jobs.exit_codes import ExitCode, JobError
from conquiet.spark.jobs.jdbc import jdbc_error
from conquiet.spark.jobs.plans import JobPlan, SessionPlan
from conquiet.spark.jobs.preflight import check_database, check_redis, check_servers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A small JSON object.
Report = dict[str, Any]

_LONGEST_ERROR = 2_000

_TO_STREAM = "stream:"
#: A report in a stream expires after this.
_KEPT_MS = 24 * 3_600_000


def run_job(job: str, arguments: Sequence[str] | None = None) -> int:
    """Do the job, write its report, and return the exit code."""
    return int(ExitCode(report_of_job(job, arguments)["exit_code"]))


def report_of_job(job: str, arguments: Sequence[str] | None = None) -> Report:
    """Do the job, and write and return its report, which says whether it was done.

    Examples:
        >>> report = report_of_job("publish", ["--no-such-option"])
        {"job": "publish", "exit_code": 2, "error": "unrecognized arguments: --no-such-option ..."...}
    """
    begun_at = time.monotonic()
    plan: JobPlan | None = None
    credentials: Credentials | None = None
    report: Report = {"job": job, "exit_code": int(ExitCode.DONE)}
    code, sentence = ExitCode.DONE, ""
    try:
        plan = parse(job, sys.argv[1:] if arguments is None else arguments)
        credentials = Credentials.read(plan.secrets, os.environ)
        report |= {"from": plan.source.name, **plan.target.address}
        check_servers(plan, credentials)
        # Spark is imported late: what is wrong with arguments and servers is reported without it.
        from conquiet.spark.jobs.work import do_job

        with _session(plan.session, plan.job) as spark:
            report |= do_job(spark, plan, credentials)
    except JobError as error:
        code, sentence = error.code, str(error)
    except Exception as error:  # noqa: BLE001 -- whatever Spark raises becomes an exit code and a sentence
        code, sentence = ExitCode.FAILED, text_of(error)
        if plan is not None and credentials is not None:
            code, sentence = _cause_of(error, plan, credentials)
    if code != ExitCode.DONE:
        shown = sentence if credentials is None else credentials.hidden_in(sentence)
        report |= {"exit_code": int(code), "error": shown[:_LONGEST_ERROR]}
        print(f"{job}: {report['error']}", file=sys.stderr, flush=True)
    report["seconds"] = round(time.monotonic() - begun_at, 3)
    to = None if plan is None else plan.report
    try:
        _write(report, to, credentials)
    except Exception as error:  # noqa: BLE001 -- of a file system or of Redis
        print(f"{job}: the report cannot be written to {to!r}: {error}", file=sys.stderr, flush=True)
        # A job that was done stays done, but its caller waits for a report that will not come.
        report["exit_code"] = report["exit_code"] or int(ExitCode.FAILED)
    return report


@contextmanager
def _session(plan: SessionPlan, job: str) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    existing = SparkSession.getActiveSession()
    builder: SparkSession.Builder = SparkSession.builder
    if existing is None:
        # Spark's own bar would write over ours.
        builder = builder.config("spark.ui.showConsoleProgress", "false")
        builder = builder.appName(plan.name or f"conquiet-{job}")
        if plan.master is not None:
            builder = builder.master(plan.master)
            if plan.master.startswith("local"):
                # Spark would take `python3` from the PATH, which need not be this one.
                os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for name, value in plan.conf:
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        # One that was there before is its owner's to stop.
        if existing is None:
            session.stop()


def _cause_of(error: Exception, plan: JobPlan, credentials: Credentials) -> tuple[ExitCode, str]:
    from conquiet.spark.jobs.spark_errors import explain

    code, sentence = explain(error)
    # Spark's own error says that a connection failed; why, its causes in Java say.
    in_java = f"{error}\n{getattr(error, '_stackTrace', None) or ''}"
    if plan.source.location == "jdbc" and (found := jdbc_error(in_java)) is not None:
        return found
    # What went wrong in a task comes as text alone: so the servers are asked again.
    try:
        check_redis(credentials)
        if plan.source.location == "database":
            check_database(credentials)
    except JobError as unavailable:
        code = unavailable.code
    return code, sentence


def _write(report: Report, to: str | None, credentials: Credentials | None) -> None:
    text = json.dumps(report)
    try:
        if to is not None and to.startswith(_TO_STREAM):
            if credentials is not None:
                stream = to.removeprefix(_TO_STREAM)
                with open_client(credentials.redis_url) as client:
                    client.xadd(stream, {"data": text}, maxlen=100)
                    client.pexpire(stream, _KEPT_MS)
        elif to is not None:
            Path(to).write_text(text + "\n")
    finally:
        # The last line of stdout, also if it cannot be written elsewhere.
        print(text, flush=True)
