"""When a drain in which messages failed fails its step, and what the step says about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import dagster as dg

from conquiet.consume import DrainReport
from conquiet.errors import DrainFailure, text_of
from dagster_conquiet.config import FailWhen

#: Ids that the log and the metadata name; the event log is no place for more.
_MOST_NAMED = 100

#: A rule of the user's own; a spec's `fail_when` may be one.
FailRule = Callable[[DrainReport], bool]


def reason_to_fail(report: DrainReport, rule: FailWhen | FailRule) -> str | None:
    """Why the step fails, in words; `None` if it does not."""
    failed = report.failed + report.retried + report.dead_lettered
    counts = f"{failed} of {failed + report.handled + report.skipped} messages failed"
    if report.stopped_by == "max_failures":
        return f"max_failures ended the drain: {counts}"
    if not isinstance(rule, FailWhen):
        return f"{counts}, ended by {report.stopped_by}, and its fail_when says so" if rule(report) else None
    if rule.all_failed and failed and not report.handled + report.skipped:
        return f"every message failed, {failed} in all"
    if rule.dead_letters is not None and report.dead_lettered >= rule.dead_letters:
        return f"{report.dead_lettered} messages became dead letters"
    if rule.failures is not None and failed >= rule.failures:
        return counts
    return None


def sentence_of(report: DrainReport, reason: str) -> str:
    """The reason, with what became of the messages."""
    what = (
        f"partition {report.partition} of {report.topic!r}" if report.topic else f"stream {report.stream!r}"
    )
    return (
        f"{reason}; {what}, group {report.group!r}: {report.failed} are pending, {report.retried} are "
        f"retried later, {report.dead_lettered} are dead letters"
    )


def log_failures(context: object, failures: Sequence[DrainFailure], *, with_texts: bool) -> None:
    """What failed, by id and kind of error; texts of errors, which may quote messages, only if allowed."""
    log = context.log  # type: ignore[attr-defined]  # of an op, an asset
    kinds = Counter(type(failure.error).__name__ for failure in failures)
    if kinds:
        log.warning("messages failed: %s", ", ".join(f"{count} by {kind}" for kind, count in kinds.items()))
    for failure in failures[:_MOST_NAMED] if with_texts else ():
        log.warning("%s failed: %s", failure.id, text_of(failure.error))


def failure_table(failures: Sequence[DrainFailure]) -> dict[str, dg.MetadataValue]:
    """The failed messages as a table of ids and kinds of errors; nothing if none failed."""
    if not failures:
        return {}
    rows = [
        dg.TableRecord({"id": failure.id, "error": type(failure.error).__name__})
        for failure in failures[:_MOST_NAMED]
    ]
    return {"failures": dg.MetadataValue.table(rows)}
