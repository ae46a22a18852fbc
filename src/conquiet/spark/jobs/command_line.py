"""The command lines of the jobs; secrets are no part of them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NoReturn, TypeVar

from conquiet.spark.jobs.exit_codes import ExitCode, JobError
from conquiet.spark.jobs.plans import JobPlan, SessionPlan, SourcePlan, TargetPlan, WindowPlan

#: What each job does, by its name.
JOBS = {
    "publish": "Each row of files, of a table or of a query becomes one message.",
    "aggregate": "Each group and window of a topic, a table, a query or files becomes one message.",
}

_MEASURES = ("sum", "avg", "min", "max")

_EXITS = """
exit codes: 0 done, 1 failed, 2 wrong arguments or secrets, 3 no such topic, 4 rows that cannot be read or
written, 5 Redis is unavailable, 6 the database is unavailable. The last line of stdout is a report in JSON.

secrets come by the environment or by --secrets FILE, a JSON object with the same names: CONQUIET_REDIS_URL,
CONQUIET_DATABASE_URL (SQLAlchemy), CONQUIET_JDBC_URL, CONQUIET_JDBC_USER, CONQUIET_JDBC_PASSWORD.
"""

_Plan = TypeVar("_Plan")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise JobError(ExitCode.ARGUMENTS, f"{message} (see --help)")


def parse(job: str, arguments: Sequence[str]) -> JobPlan:
    """The plan.

    Raises:
        JobError: the arguments do not fit together.
    """
    given = vars(parser_of(job).parse_args(arguments))
    source = _plan_of(SourcePlan, given, options=_pairs("--option", given["option"]))
    target = _plan_of(
        TargetPlan,
        given,
        topic=given["to_topic"],
        stream=given["to_stream"],
        headers=_pairs("--header", given["header"]),
    )
    _check(source, target, job, given["retry_timeout_ms"])
    window = None
    if job == "aggregate":
        measures = [(name, column) for name in _MEASURES for names in given[name] for column in names]
        time = given["time"] or ("timestamp" if source.topic or source.stream else None)
        if time is None:
            raise JobError(
                ExitCode.ARGUMENTS, "--time must name the column of time; only entries have one of their own"
            )
        window = _plan_of(WindowPlan, given, time=time, measures=tuple(measures))
    session = _plan_of(SessionPlan, given, conf=_pairs("--conf", given["conf"]))
    return _plan_of(JobPlan, given, job=job, source=source, target=target, window=window, session=session)


def parser_of(job: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=f"conquiet.spark.jobs.{job}",
        description=JOBS[job],
        epilog=_EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    groups = {"what is read (one of them)": _SOURCE}
    if job == "aggregate":
        groups = {"what is read (one of them)": _SOURCE | _ENTRIES, "what is computed": _WINDOW}
    for title, options in (groups | {"where it goes": _TARGET, "how it runs": _RUN}).items():
        group = parser.add_argument_group(title)
        for name, settings in options.items():
            group.add_argument(name, **settings)
    return parser


def _check(source: SourcePlan, target: TargetPlan, job: str, retry_timeout_ms: int) -> None:
    sources = [source.files, source.table, source.query, source.topic, source.stream]
    kinds = "--files, --table, --query" + (", --topic, --stream" if job == "aggregate" else "")
    for is_wrong, sentence in (
        ((target.topic is None) == (target.stream is None), "either --to-topic or --to-stream must be given"),
        (
            target.stream is not None and (target.key or target.headers or target.traceparent),
            "a plain stream has no keys and no headers: --key, --header and --traceparent need --to-topic",
        ),
        (sum(map(bool, sources)) != 1, f"exactly one of {kinds} must be given"),
        (
            (source.topic or source.stream) and not source.schema,
            "--topic and --stream need --schema: what the payloads are read as",
        ),
        (retry_timeout_ms < 0, f"--retry-timeout-ms must not be negative, got {retry_timeout_ms}"),
        (source.tasks < 1, f"--tasks must be above 0, got {source.tasks}"),
        (
            source.tasks > 1 and not source.partition_column,
            "--tasks needs --partition-column, a column of numbers",
        ),
        (
            source.partition_column and source.location == "spark",
            "--partition-column is for --in database and --in jdbc",
        ),
    ):
        if is_wrong:
            raise JobError(ExitCode.ARGUMENTS, sentence)


def _plan_of(kind: type[_Plan], given: dict[str, Any], **more: Any) -> _Plan:
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # every plan is a dataclass
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return kind(**{name: value for name, value in values.items() if name in names} | more)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _pairs(option: str, texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    pairs = []
    for text in texts:
        name, is_pair, value = text.partition("=")
        if not is_pair or not name:
            raise JobError(ExitCode.ARGUMENTS, f"{option} needs NAME=VALUE, got {text!r}")
        pairs.append((name, value))
    return tuple(pairs)


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return number


_MANY: dict[str, Any] = {"action": "append", "default": []}

_SOURCE: dict[str, dict[str, Any]] = {
    "--files": {**_MANY, "help": "a path or pattern; several times"},
    "--table": {"help": "the name of a table"},
    "--query": {"help": "a SELECT"},
    "--format": {"choices": ("parquet", "csv", "json"), "help": "of files; else by their suffix"},
    "--in": {
        "dest": "location",
        "choices": ("spark", "database", "jdbc"),
        "default": "spark",
        "help": "where table or query are: Spark's catalog, CONQUIET_DATABASE_URL, CONQUIET_JDBC_URL",
    },
    "--option": {**_MANY, "help": "NAME=VALUE for Spark's reader"},
    "--schema": {"help": "columns and types: 'order_id STRING, cents BIGINT'"},
    "--where": {"help": "only rows for which this is true, in Spark's SQL"},
    "--partition-column": {"help": "column of numbers that divides a table or query"},
    "--tasks": {"type": int, "default": 1, "help": "into so many parts"},
}

_ENTRIES: dict[str, dict[str, Any]] = {
    "--topic": {"help": "messages of a topic; needs --schema"},
    "--stream": {"help": "messages of a plain stream; needs --schema"},
    "--start": {"help": "with --topic or --stream: first id or time"},
    "--end": {"help": "with --topic or --stream: last id or time"},
}

_WINDOW: dict[str, dict[str, Any]] = {
    "--by": {"required": True, "type": _names, "help": "columns that make a group: customer,currency"},
    "--time": {"help": "column of time; with a topic or stream, `timestamp` unless given"},
    "--window": {"dest": "length", "required": True, "help": "its length: '1 hour'"},
    "--slide": {"help": "a new window every so often, if not after each length"},
    **{
        f"--{measure}": {
            **_MANY,
            "type": _names,
            "help": f"columns whose {measure} is computed, as column {measure}_NAME; `count` always is",
        }
        for measure in _MEASURES
    },
}

_TARGET: dict[str, dict[str, Any]] = {
    "--to-topic": {"help": "a topic; it must be there"},
    "--to-stream": {"help": "a plain stream"},
    "--key": {"help": "column of the key: rows with the same one keep to one partition"},
    "--columns": {
        "type": _names,
        "default": (),
        "help": "columns that make the payload: a,b; all unless given",
    },
    "--header": {**_MANY, "help": "NAME=TEXT on every message"},
    "--dedupe-id": {"help": "names this write: a second one with the same name adds only what is missing"},
    "--dedupe-columns": {
        "type": _names,
        "default": (),
        "help": "columns that name a row: a,b; one is added once a day",
    },
    "--traceparent": {"help": "the W3C context of a trace, which every message carries"},
}

_RUN: dict[str, dict[str, Any]] = {
    "--secrets": {"help": "a JSON file, instead of the environment"},
    "--report": {"help": "also write the report to this file, or to stream:NAME"},
    "--progress-every-s": {"type": _positive, "default": 5.0, "help": "seconds between two lines"},
    "--retry-timeout-ms": {
        "type": int,
        "default": 60_000,
        "help": "how long an outage of Redis is waited for in the middle of the job",
    },
    "--master": {"help": "without spark-submit: Spark's master, such as local[2]"},
    "--name": {"help": "without spark-submit: the name of the application"},
    "--conf": {**_MANY, "help": "NAME=VALUE for the session"},
}
