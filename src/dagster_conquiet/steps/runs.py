"""What the instance knows of a job's runs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

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


def run_in_progress(
    instance: DagsterInstance, job_name: str, tags: Mapping[str, str] | None = None
) -> str | None:
    """The id of a run of this job that is queued or runs."""
    record = _latest(instance, job_name, _IN_PROGRESS, tags)
    return None if record is None else record.dagster_run.run_id


def last_finished(
    instance: DagsterInstance, job_name: str, tags: Mapping[str, str] | None = None
) -> RunRecord | None:
    """The latest finished run of this job."""
    return _latest(instance, job_name, _FINISHED, tags)


def remaining_pause_s(last: RunRecord | None, pause_s: float) -> float:
    """How long to wait after a failed run; 0 or less if there is nothing to wait for."""
    if last is None or last.end_time is None or last.dagster_run.status != DagsterRunStatus.FAILURE:
        return 0.0
    return last.end_time + pause_s - time.time()


def _latest(
    instance: DagsterInstance,
    job_name: str,
    statuses: tuple[DagsterRunStatus, ...],
    tags: Mapping[str, str] | None,
) -> RunRecord | None:
    filters = dg.RunsFilter(job_name=job_name, statuses=list(statuses), tags=tags)
    return next(iter(instance.get_run_records(filters, limit=1)), None)
