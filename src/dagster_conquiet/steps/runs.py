"""What the instance knows of a job's runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import dagster as dg
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunRecord

#: Tags of runs that Dagster sets; it exports no names for them.
REPOSITORY_LABEL_TAG = ".dagster/repository"
PARTITION_NAME_TAG = "dagster/partition"
_RANGE_TAGS = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")

#: A run that was created and never launched is not among them: a request with its key launches it.
_IN_PROGRESS = (
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
    DagsterRunStatus.MANAGED,
)
_FINISHED = (DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)

#: Older ones are not looked at.
_MOST_RUNS = 100

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
) -> Sequence[RunRecord]:
    """The runs of this job that are queued or run, as far as their states tell; the latest 100.

    Args:
        location: `repository@location`, as Dagster labels runs: other locations may have a job of this name.
    """
    return _records(instance, job_name, _IN_PROGRESS, _in_location(location), limit=_MOST_RUNS)


@dataclass(frozen=True, slots=True)
class FinishedRuns:
    """The latest finished runs of a job; what is older is asked for by its partition."""

    latest: Sequence[RunRecord]
    of_partition: Callable[[str], RunRecord | None]

    def last_of(self, partition_key: str | None) -> RunRecord | None:
        """The latest one, or the latest that concerned this partition."""
        for record in self.latest:
            if concerns_partition(record.dagster_run, partition_key):
                return record
        is_complete = partition_key is None or len(self.latest) < _MOST_RUNS
        return None if is_complete else self.of_partition(partition_key or "")


def finished_runs(instance: DagsterInstance, job_name: str, location: str | None = None) -> FinishedRuns:
    """The latest finished runs of this job."""

    def of_partition(key: str) -> RunRecord | None:
        tags = {**_in_location(location), PARTITION_NAME_TAG: key}
        return next(iter(_records(instance, job_name, _FINISHED, tags, limit=1)), None)

    return FinishedRuns(
        _records(instance, job_name, _FINISHED, _in_location(location), limit=_MOST_RUNS), of_partition
    )


def concerns_partition(run: DagsterRun, partition_key: str | None) -> bool:
    """Whether a run drains this partition, alone or in a range; every run drains a stream."""
    if partition_key is None or run.tags.get(PARTITION_NAME_TAG) == partition_key:
        return True
    start, end = (run.tags.get(tag, "") for tag in _RANGE_TAGS)
    if not (start.isdecimal() and end.isdecimal() and partition_key.isdecimal()):
        return False
    return int(start) <= int(partition_key) <= int(end)


def remaining_pause_s(last: RunRecord | None, pause_s: float) -> float:
    """How long to wait after a failed run; 0 or less if there is nothing to wait for."""
    if last is None or last.end_time is None or last.dagster_run.status != DagsterRunStatus.FAILURE:
        return 0.0
    return last.end_time + pause_s - time.time()


def last_sign_of_life(instance: DagsterInstance, record: RunRecord) -> float:
    """When the run was changed or wrote an event last, in seconds since the epoch."""
    events = instance.get_records_for_run(record.dagster_run.run_id, limit=1, ascending=False).records
    known = [record.start_time, *(event.timestamp for event in events)]
    return max((at for at in known if at is not None), default=record.update_timestamp.timestamp())


def holders_of_pool(instance: DagsterInstance, pool: str, *, waiting_run: str) -> dict[str, bool]:
    """The runs that have the slots of a pool, if a step of this run waits for one; and whether they ended."""
    storage = instance.event_log_storage
    if not storage.supports_global_concurrency_limits:
        return {}
    info = storage.get_concurrency_info(pool)
    if waiting_run not in info.pending_run_ids:
        return {}
    runs = {run_id: instance.get_run_by_id(run_id) for run_id in sorted(info.active_run_ids)}
    return {run_id: run is None or run.is_finished for run_id, run in runs.items()}


def _in_location(location: str | None) -> dict[str, str]:
    return {} if location is None else {REPOSITORY_LABEL_TAG: location}


def _records(
    instance: DagsterInstance,
    job_name: str,
    statuses: tuple[DagsterRunStatus, ...],
    tags: Mapping[str, str],
    *,
    limit: int,
) -> Sequence[RunRecord]:
    filters = dg.RunsFilter(job_name=job_name, statuses=list(statuses), tags=dict(tags))
    return instance.get_run_records(filters, limit=limit)
