"""What the instance knows of a job's runs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import dagster as dg
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunRecord

#: A run that was created and never launched is not among them: a request with its key launches it.
_IN_PROGRESS = (
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
    DagsterRunStatus.MANAGED,
)
_FINISHED = (DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)

#: A chain of retried runs is followed this far back.
_MAX_ANCESTORS = 100


def runs_retried_by(run: DagsterRun, instance: DagsterInstance) -> Iterator[str]:
    """The runs that this one retries, the nearest first."""
    for _ in range(_MAX_ANCESTORS):
        parent_id = run.parent_run_id or run.tags.get("dagster/parent_run_id")
        parent = instance.get_run_by_id(parent_id) if parent_id else None
        # A run that is executed again after its success is new work, and one that still runs is not dead.
        if parent is None or parent.status not in (DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED):
            return
        yield parent.run_id
        run = parent


def runs_in_progress(
    instance: DagsterInstance, job_name: str, location: str | None = None
) -> list[RunRecord]:
    """The runs of this job that are queued or run, as far as their states tell; the latest 100.

    Args:
        location: `repository@location`, as Dagster labels runs: other locations may have a job of this name.
    """
    return list(_records(instance, job_name, _IN_PROGRESS, location, None, limit=100))


def last_finished(
    instance: DagsterInstance, job_name: str, location: str | None = None, partition_key: str | None = None
) -> RunRecord | None:
    """The latest finished run of this job, of this partition."""
    return next(iter(_records(instance, job_name, _FINISHED, location, partition_key, limit=1)), None)


def remaining_pause_s(last: RunRecord | None, pause_s: float) -> float:
    """How long to wait after a failed run; 0 or less if there is nothing to wait for."""
    if last is None or last.end_time is None or last.dagster_run.status != DagsterRunStatus.FAILURE:
        return 0.0
    return last.end_time + pause_s - time.time()


def is_cancelled_since(last: RunRecord | None, newest_id: str) -> bool:
    """Whether the last run was cancelled, and no message has come after that.

    Args:
        newest_id: of the last entry that was added.
    """
    if last is None or last.dagster_run.status != DagsterRunStatus.CANCELED:
        return False
    ended = last.end_time if last.end_time is not None else last.update_timestamp.timestamp()
    return int(newest_id.partition("-")[0]) <= ended * 1000


def last_sign_of_life(instance: DagsterInstance, record: RunRecord) -> float:
    """When the run was changed or wrote an event last, in seconds since the epoch."""
    events = instance.get_records_for_run(record.dagster_run.run_id, limit=1, ascending=False).records
    known = [record.start_time, *(event.timestamp for event in events)]
    return max((at for at in known if at is not None), default=record.update_timestamp.timestamp())


def _records(
    instance: DagsterInstance,
    job_name: str,
    statuses: tuple[DagsterRunStatus, ...],
    location: str | None,
    partition_key: str | None,
    *,
    limit: int,
) -> Sequence[RunRecord]:
    tags = {".dagster/repository": location, "dagster/partition": partition_key}
    filters = dg.RunsFilter(
        job_name=job_name,
        statuses=list(statuses),
        tags={name: value for name, value in tags.items() if value is not None},
    )
    return instance.get_run_records(filters, limit=limit)
