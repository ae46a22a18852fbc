"""From a command line to an exit code: what every job does."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from conquiet.errors import text_of
from conquiet.spark.jobs.command_line import parse
from conquiet.spark.jobs.credentials import Credentials
from conquiet.spark.jobs.exit_codes import ExitCode, JobError
from conquiet.spark.jobs.plans import JobPlan, SessionPlan
from conquiet.spark.jobs.preflight import check_database, check_redis, look_first
from conquiet.spark.jobs.report import Report, write_report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LONGEST_ERROR = 2_000


def run_job(job: str, arguments: Sequence[str] | None = None) -> int:
    """Do the job, tell its report, and return the exit code."""
    return int(ExitCode(report_of_job(job, arguments)["exit_code"]))


def report_of_job(job: str, arguments: Sequence[str] | None = None) -> Report:
    """Do the job and return its report, which says whether it was done."""
    begun_at = time.monotonic()
    plan: JobPlan | None = None
    credentials: Credentials | None = None
    report: Report = {"job": job, "exit_code": int(ExitCode.DONE)}
    try:
        plan = parse(job, sys.argv[1:] if arguments is None else arguments)
        credentials = Credentials.read(plan.secrets, os.environ)
        report |= {"from": plan.source.name, **plan.target.place}
        look_first(plan, credentials)
        report |= _done(plan, credentials)
    except JobError as error:
        report |= _failure(error.code, str(error), credentials)
    except Exception as error:  # noqa: BLE001 -- whatever Spark raises becomes an exit code and a sentence
        report |= _failed_in_spark(error, plan, credentials)
    report["seconds"] = round(time.monotonic() - begun_at, 3)
    return _told(report, plan, credentials)


def _done(plan: JobPlan, credentials: Credentials) -> Report:
    # Spark is imported late: what is wrong with arguments and servers is told without it.
    from conquiet.spark.jobs.work import do_job

    with _session(plan.session, plan.job) as spark:
        return do_job(spark, plan, credentials)


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
                # Spark would look for `python3` on the PATH, which need not be this one.
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


def _failed_in_spark(error: Exception, plan: JobPlan | None, credentials: Credentials | None) -> Report:
    code, sentence = ExitCode.FAILED, text_of(error)
    if plan is not None and credentials is not None:
        code = _cause(error, plan, credentials)
        from conquiet.spark.jobs.spark_errors import sentence_of

        sentence = sentence_of(error)
    return _failure(code, sentence, credentials)


def _cause(error: Exception, plan: JobPlan, credentials: Credentials) -> ExitCode:
    # Spark tells of what went wrong in a task by text alone: so the servers are asked again.
    from conquiet.spark.jobs.spark_errors import is_about_data

    try:
        check_redis(credentials)
        if plan.source.location == "database":
            check_database(credentials)
    except JobError as away:
        return away.code
    return ExitCode.DATA if is_about_data(error) else ExitCode.FAILED


def _failure(code: ExitCode, sentence: str, credentials: Credentials | None) -> Report:
    shown = sentence if credentials is None else credentials.hidden_in(sentence)
    return {"exit_code": int(code), "error": shown[:_LONGEST_ERROR]}


def _told(report: Report, plan: JobPlan | None, credentials: Credentials | None) -> Report:
    if "error" in report:
        print(f"{report['job']}: {report['error']}", file=sys.stderr, flush=True)
    try:
        write_report(report, None if plan is None else plan.report, credentials)
    except JobError as error:
        print(f"{report['job']}: {error}", file=sys.stderr, flush=True)
        # A job that was done stays done, but its caller waits for a report that will not come.
        report["exit_code"] = report["exit_code"] or int(error.code)
    return report
