"""What a job is to do, as given on its command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Where a table or a query is.
Location = Literal["spark", "database", "jdbc"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """What is read: one of files, table, query, topic and stream."""

    files: tuple[str, ...] = ()
    table: str | None = None
    query: str | None = None
    topic: str | None = None
    stream: str | None = None
    #: Of files.
    format: str | None = None
    location: Location = "spark"
    #: Options of Spark's reader.
    options: tuple[tuple[str, str], ...] = ()
    #: Columns and their types: what payloads and files are read as, what rows of a database are cast to.
    schema: str | None = None
    #: A condition in Spark's SQL.
    where: str | None = None
    #: With a database, the column of numbers by which the rows are divided.
    partition_column: str | None = None
    tasks: int = 1
    #: With a topic or stream, ids or times.
    start: str | None = None
    end: str | None = None

    @property
    def name(self) -> str:
        """For reports: which files, table, topic or stream."""
        if self.files:
            return ", ".join(self.files)
        return self.table or self.topic or self.stream or "query"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPlan:
    """Where messages go, and how one is known that was sent before."""

    topic: str | None = None
    stream: str | None = None
    key: str | None = None
    #: Those that make the payload; empty for all.
    columns: tuple[str, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    dedupe_id: str | None = None
    dedupe_columns: tuple[str, ...] = ()
    #: The W3C context of the trace that the job belongs to.
    traceparent: str | None = None

    @property
    def address(self) -> dict[str, str]:
        return {"topic": self.topic} if self.topic is not None else {"stream": self.stream or ""}

    @property
    def used(self) -> list[str]:
        return [*self.columns, *self.dedupe_columns, *([self.key] if self.key is not None else [])]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPlan:
    """What is computed for each group and window."""

    by: tuple[str, ...]
    time: str
    length: str
    slide: str | None = None
    #: Pairs of a function and a column, such as ("sum", "cents").
    measures: tuple[tuple[str, str], ...] = ()

    @property
    def used(self) -> list[str]:
        """Every column that it needs, once."""
        return sorted({*self.by, self.time, *(column for _, column in self.measures)})


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPlan:
    """The Spark session, for a job that is not started by spark-submit."""

    master: str | None = None
    name: str | None = None
    conf: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """All of it; `window` is that of the job `aggregate`."""

    job: str
    source: SourcePlan
    target: TargetPlan
    window: WindowPlan | None = None
    session: SessionPlan = SessionPlan()
    #: A JSON file of secrets.
    secrets: str | None = None
    #: A file, or `stream:NAME`.
    report: str | None = None
    progress_every_s: float = 5.0
    #: How long an outage of Redis is waited for in the middle of the job.
    retry_timeout_ms: int = 60_000
