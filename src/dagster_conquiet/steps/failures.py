"""When a drain in which messages failed fails its step, and what the step says about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import dagster as dg

from conquiet.consume import DrainReport
from conquiet.errors import ConquietError, DbError, DrainFailure, causes_of, text_of
from dagster_conquiet.config import FailWhen

#: Ids that the log and the metadata name; the event log is no place for more.
_MOST_NAMED = 100

#: A rule of the user's own; a spec's `fail_when` may be one.
FailRule = Callable[[DrainReport], bool]
#: A limit ended it, and there is more.
TOO_SOON = ("max_messages", "max_duration")


class OutageFailure(dg.Failure):
    """A server was unavailable in the middle of a drain; its metadata has what was done before that."""


def reason_to_fail(report: DrainReport, rule: FailWhen | FailRule) -> str | None:
    """Why the step fails, in words; `None` if it does not."""
    failed, counts = _failed_of(report)
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


def reason_partition_fails(report: DrainReport) -> str | None:
    """Why the step of what is read again fails: a partition is whole, or it is not materialised."""
    failed, counts = _failed_of(report)
    if not failed and report.stopped_by not in (*TOO_SOON, "max_failures"):
        return None
    return (
        f"{counts}, ended by {report.stopped_by}: a partition is materialised when all of its messages were "
        "handled, whatever fail_when says"
    )


def _failed_of(report: DrainReport) -> tuple[int, str]:
    failed = report.failed + report.retried + report.dead_lettered
    return failed, f"{failed} of {failed + report.handled + report.skipped} messages failed"


def outage_in_words(error: Exception, *, with_text: bool) -> str:
    """What ended a drain; the text of a database's error, which may quote a message, only if allowed."""
    if with_text or (isinstance(error, ConquietError) and not isinstance(error, DbError)):
        return text_of(error)
    return ", by ".join(type(cause).__name__ for cause in causes_of(error))


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
    schema = dg.TableSchema(
        [
            dg.TableColumn("id", description="The entry of the stream, which has the message."),
            dg.TableColumn("error", description="The kind of the error; see log_errors for its text."),
        ]
    )
    return {"failures": dg.MetadataValue.table(rows, schema=schema)}
