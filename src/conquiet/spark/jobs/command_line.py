"""The command lines of the jobs; secrets are no part of them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from conquiet.spark.jobs.exit_codes import ExitCode, JobError
from conquiet.spark.jobs.plans import JobPlan, SessionPlan, SourcePlan, TargetPlan, WindowPlan

MEASURES = ("sum", "avg", "min", "max")

_EXITS = """
exit codes: 0 done, 1 failed, 2 wrong arguments or secrets, 3 no such topic, 4 rows that cannot be read or
written, 5 Redis is away, 6 the database is away. The last line of stdout is a report in JSON.

secrets come by the environment or by --secrets FILE, a JSON object with the same names: CONQUIET_REDIS_URL,
CONQUIET_DATABASE_URL (SQLAlchemy), CONQUIET_JDBC_URL, CONQUIET_JDBC_USER, CONQUIET_JDBC_PASSWORD.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise JobError(ExitCode.ARGUMENTS, f"{message} (see --help)")


def parse(job: str, arguments: Sequence[str]) -> JobPlan:
    """The plan.

    Raises:
        JobError: the arguments do not fit together.
    """
    given = PARSERS[job]().parse_args(arguments)
    plan = JobPlan(
        job=job,
        source=_source(given),
        target=_target(given),
        window=_window(given) if job == "aggregate" else None,
        session=SessionPlan(master=given.master, name=given.name, conf=_pairs("--conf", given.conf)),
        secrets=given.secrets,
        report=given.report,
        progress_every_s=given.progress_every_s,
    )
    _check_source(plan)
    return plan


def publish_parser() -> argparse.ArgumentParser:
    """Of the job `publish`."""
    parser = _Parser(
        prog="conquiet.spark.jobs.publish",
        description="Each row of files, of a table or of a query becomes one message.",
        epilog=_EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_source(parser)
    _add_target(parser)
    _add_running(parser)
    return parser


def aggregate_parser() -> argparse.ArgumentParser:
    """Of the job `aggregate`."""
    parser = _Parser(
        prog="conquiet.spark.jobs.aggregate",
        description="Each group and window of a topic, a table, a query or files becomes one message.",
        epilog=_EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source = _add_source(parser)
    source.add_argument("--topic", help="messages of a topic; needs --schema")
    source.add_argument("--stream", help="messages of a plain stream; needs --schema")
    source.add_argument("--start", help="with --topic or --stream: first id or time")
    source.add_argument("--end", help="with --topic or --stream: last id or time")
    window = parser.add_argument_group("what is computed")
    window.add_argument("--by", required=True, help="columns that make a group: customer,currency")
    window.add_argument("--time", help="column of time; with a topic or stream, `timestamp` unless given")
    window.add_argument("--window", required=True, help="its length: '1 hour'")
    window.add_argument("--slide", help="a new window every so often, if not after each length")
    for measure in MEASURES:
        help_ = f"columns whose {measure} is computed, as column {measure}_NAME; `count` always is"
        window.add_argument(f"--{measure}", action="append", default=[], help=help_)
    _add_target(parser)
    _add_running(parser)
    return parser


#: By the name of the job.
PARSERS: dict[str, Callable[[], argparse.ArgumentParser]] = {
    "publish": publish_parser,
    "aggregate": aggregate_parser,
}


def _add_source(parser: argparse.ArgumentParser) -> Any:
    source = parser.add_argument_group("what is read (one of them)")
    source.add_argument("--files", action="append", default=[], help="a path or pattern; several times")
    source.add_argument("--table", help="the name of a table")
    source.add_argument("--query", help="a SELECT")
    source.add_argument("--format", choices=("parquet", "csv", "json"), help="of files; else by their suffix")
    source.add_argument(
        "--in",
        dest="location",
        choices=("spark", "database", "jdbc"),
        default="spark",
        help="where table or query are: Spark's catalog, CONQUIET_DATABASE_URL, CONQUIET_JDBC_URL",
    )
    source.add_argument("--option", action="append", default=[], help="NAME=VALUE for Spark's reader")
    source.add_argument("--schema", help="columns and types: 'order_id STRING, cents BIGINT'")
    source.add_argument("--where", help="only rows for which this is true, in Spark's SQL")
    source.add_argument("--partition-column", help="column of numbers that divides a table or query")
    source.add_argument("--tasks", type=_positive, default=1, help="into so many parts")
    return source


def _add_target(parser: argparse.ArgumentParser) -> None:
    target = parser.add_argument_group("where it goes")
    target.add_argument("--to-topic", help="a topic; it must be there")
    target.add_argument("--to-stream", help="a plain stream")
    target.add_argument("--key", help="column of the key: rows with the same one keep to one partition")
    target.add_argument("--columns", help="columns that make the payload: a,b; all unless given")
    target.add_argument("--header", action="append", default=[], help="NAME=TEXT on every message")
    target.add_argument(
        "--dedupe-id", help="names this write: a second one with the same name adds only what is missing"
    )
    target.add_argument("--dedupe-columns", help="columns that name a row: a,b; one is added once a day")
    target.add_argument("--traceparent", help="the W3C context of a trace, which every message carries")


def _add_running(parser: argparse.ArgumentParser) -> None:
    running = parser.add_argument_group("how it runs")
    running.add_argument("--secrets", help="a JSON file, instead of the environment")
    running.add_argument("--report", help="also write the report to this file, or to stream:NAME")
    running.add_argument("--progress-every-s", type=_seconds, default=5.0, help="seconds between two lines")
    running.add_argument("--master", help="without spark-submit: Spark's master, such as local[2]")
    running.add_argument("--name", help="without spark-submit: the name of the application")
    running.add_argument("--conf", action="append", default=[], help="NAME=VALUE for the session")


def _source(given: argparse.Namespace) -> SourcePlan:
    return SourcePlan(
        files=tuple(given.files),
        table=given.table,
        query=given.query,
        topic=getattr(given, "topic", None),
        stream=getattr(given, "stream", None),
        format=given.format,
        location=given.location,
        options=_pairs("--option", given.option),
        schema=given.schema,
        where=given.where,
        partition_column=given.partition_column,
        tasks=given.tasks,
        start=getattr(given, "start", None),
        end=getattr(given, "end", None),
    )


def _target(given: argparse.Namespace) -> TargetPlan:
    if (given.to_topic is None) == (given.to_stream is None):
        raise JobError(ExitCode.ARGUMENTS, "either --to-topic or --to-stream must be given")
    if given.to_stream is not None and (given.key or given.header or given.traceparent):
        raise JobError(
            ExitCode.ARGUMENTS,
            "a plain stream has no keys and no headers: --key, --header and --traceparent need --to-topic",
        )
    return TargetPlan(
        topic=given.to_topic,
        stream=given.to_stream,
        key=given.key,
        columns=_names(given.columns),
        headers=_pairs("--header", given.header),
        dedupe_id=given.dedupe_id,
        dedupe_columns=_names(given.dedupe_columns),
        traceparent=given.traceparent,
    )


def _window(given: argparse.Namespace) -> WindowPlan:
    measures = [
        (measure, column)
        for measure in MEASURES
        for text in getattr(given, measure)
        for column in _names(text)
    ]
    is_of_entries = given.topic is not None or given.stream is not None
    if given.time is None and not is_of_entries:
        raise JobError(
            ExitCode.ARGUMENTS, "--time must name the column of time; only entries have one of their own"
        )
    return WindowPlan(
        by=_names(given.by),
        time=given.time or "timestamp",
        length=given.window,
        slide=given.slide,
        measures=tuple(measures),
    )


def _check_source(plan: JobPlan) -> None:
    source = plan.source
    named = [source.files, source.table, source.query, source.topic, source.stream]
    if sum(bool(name) for name in named) != 1:
        kinds = "--files, --table, --query" + (", --topic, --stream" if plan.window else "")
        raise JobError(ExitCode.ARGUMENTS, f"exactly one of {kinds} must be given")
    if (source.topic or source.stream) and not source.schema:
        raise JobError(
            ExitCode.ARGUMENTS, "--topic and --stream need --schema: what the payloads are read as"
        )
    if source.tasks > 1 and not source.partition_column:
        raise JobError(ExitCode.ARGUMENTS, "--tasks needs --partition-column, a column of numbers")
    if source.partition_column and source.location == "spark":
        raise JobError(ExitCode.ARGUMENTS, "--partition-column is for --in database and --in jdbc")


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def _pairs(option: str, texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    pairs = []
    for text in texts:
        name, is_pair, value = text.partition("=")
        if not is_pair or not name:
            raise JobError(ExitCode.ARGUMENTS, f"{option} needs NAME=VALUE, got {text!r}")
        pairs.append((name, value))
    return tuple(pairs)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return number
