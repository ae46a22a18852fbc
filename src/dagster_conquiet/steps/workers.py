"""Who works for a group now: by heartbeats and leases first, by the states of runs after that."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dagster import DagsterInstance, DagsterRunStatus, RunRecord

from dagster_conquiet.steps.runs import holders_of_pool, last_sign_of_life

#: A recovery lives in the group too, and takes no new messages.
RECOVERY = "claim_stale__"
#: A run that is being launched writes no events until its process is up, as in a new container.
_LAUNCH_S = 300.0
#: After more runs that were killed, and that nothing has ended since, the next one has no longer.
_MOST_DOUBLINGS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Working:
    """What one tick knows of the work on one stream, or on one partition."""

    #: A sentence for each run or consumer that works, or is about to.
    reasons: tuple[str, ...] = ()
    #: Their names, in the same order.
    names: tuple[str, ...] = ()
    #: Runs that are in progress by their state, and that nothing in the group belongs to.
    stalled: tuple[str, ...] = ()


def who_works(
    instance: DagsterInstance,
    runs: Iterable[RunRecord],
    live: Iterable[str],
    *,
    what: str,
    pool: str,
    stalled_after_s: float,
) -> Working:
    """Match the runs in progress with the live consumers.

    A run that was killed stays "started" for ever if nothing monitors runs: without a live consumer, and
    without an event for `stalled_after_s`, it does not count; beside another such run, for twice as long, and
    so on up to 32 times.

    Args:
        runs: those in progress that may drain it.
        live: the consumers that are alive in it, by their heartbeats or leases.
        what: the name of the stream or the partition, for the sentences.
        pool: that of the drains.
    """
    drains = sorted(name for name in live if not name.partition(".")[2].startswith(RECOVERY))
    reasons: dict[str, str] = {}
    stalled: list[str] = []
    # The oldest first: those that come after one that was killed have longer.
    for record in sorted(runs, key=lambda record: record.storage_id):
        run = record.dagster_run
        if any(name.partition(".")[0] == run.run_id for name in drains):
            reasons[run.run_id] = f"run {run.run_id} drains {what}"
        elif _is_about_to_begin(instance, record, stalled_after_s * 2 ** min(len(stalled), _MOST_DOUBLINGS)):
            status = run.status.value.lower()
            reasons[run.run_id] = f"run {run.run_id} of {run.job_name!r} is in progress ({status})"
        elif holders := holders_of_pool(instance, pool, waiting_run=run.run_id):
            # Another run would wait for it too.
            reasons[run.run_id] = (
                f"run {run.run_id} waits for a slot of pool {pool!r}, which has {_described(holders)}"
            )
        else:
            stalled.append(run.run_id)
    for name in drains:
        if name.partition(".")[0] not in reasons:
            reasons[name] = f"consumer {name!r} drains {what}"
    return Working(reasons=tuple(reasons.values()), names=tuple(reasons), stalled=tuple(stalled))


def _described(holders: Mapping[str, bool]) -> str:
    runs = ", ".join(f"run {run_id}{' (ended)' * has_ended}" for run_id, has_ended in holders.items())
    if not any(holders.values()):
        return runs
    return (
        f"{runs}: Dagster frees the slots of a run that was killed after free_slots_after_run_end_seconds of "
        "run_monitoring, where that is set; else free them in the UI, under Deployment, Concurrency"
    )


def _is_about_to_begin(instance: DagsterInstance, record: RunRecord, stalled_after_s: float) -> bool:
    status = record.dagster_run.status
    if status == DagsterRunStatus.QUEUED:
        return True
    if status == DagsterRunStatus.STARTING:
        stalled_after_s = max(_LAUNCH_S, stalled_after_s)
    return time.time() - last_sign_of_life(instance, record) < stalled_after_s
