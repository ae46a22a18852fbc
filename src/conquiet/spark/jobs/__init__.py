"""Jobs for spark-submit and `python -m`; this module imports no Spark, so that orchestrators can use it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conquiet.spark.jobs.command_line import JOBS, parse
from conquiet.spark.jobs.credentials import (
    DATABASE_URL_VARIABLE,
    JDBC_PASSWORD_VARIABLE,
    JDBC_URL_VARIABLE,
    JDBC_USER_VARIABLE,
    REDIS_URL_VARIABLE,
)
from conquiet.spark.jobs.exit_codes import ExitCode, JobError

__all__ = [
    "DATABASE_URL_VARIABLE",
    "JDBC_PASSWORD_VARIABLE",
    "JDBC_URL_VARIABLE",
    "JDBC_USER_VARIABLE",
    "REDIS_URL_VARIABLE",
    "ExitCode",
    "JobError",
    "application_of",
    "arguments_of",
    "check_arguments",
]


def application_of(job: str) -> str:
    """The file of a job, for spark-submit."""
    _check_job(job)
    return str(Path(__file__).with_name(f"{job}.py"))


def arguments_of(options: Mapping[str, Any]) -> list[str]:
    """Options as a command line: `{"to_topic": "t", "sum": ["a", "b"], "count": None}`.

    A list gives its option several times, `True` gives it without a value, `None` and `False` leave it out.

    Examples:
        >>> arguments_of({"to_topic": "totals", "sum": ["cents", "tax"], "dry_run": True, "count": None})
        ['--to-topic=totals', '--sum=cents', '--sum=tax', '--dry-run']
    """
    arguments: list[str] = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        for one in value if isinstance(value, list | tuple) else [value]:
            if one is True:
                arguments.append(option)
            elif one is not None and one is not False:
                # One word: a value may begin with a dash.
                arguments.append(f"{option}={one}")
    return arguments


def check_arguments(job: str, arguments: list[str]) -> None:
    """Refuse a command line that the job would refuse.

    Raises:
        JobError: with what the job would say.
    """
    _check_job(job)
    parse(job, arguments)


def _check_job(job: str) -> None:
    if job not in JOBS:
        raise JobError(ExitCode.ARGUMENTS, f"there is no job {job!r}, only {', '.join(JOBS)}")
