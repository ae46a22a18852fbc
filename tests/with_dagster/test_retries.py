"""Retries: what an earlier attempt left pending is handled first, and each effect happens once."""

from __future__ import annotations

import dagster as dg

from dagster_conquiet import build_drain_job
from dagster_conquiet.steps.attempts import Attempt
from tests.with_dagster.jobs_to_rebuild import dying_job, dying_job_without_retry

RUN, OLDER, OLDEST = "run-3", "run-2", "run-1"


def test_a_step_killed_in_the_middle_of_a_message_is_retried_with_each_effect_once(
    place, kept_instance, enqueue, effects_seen, pending, consumers
):
    ids = enqueue(10)

    result = dg.execute_job(dg.reconstructable(dying_job), instance=kept_instance)

    assert (place / "died").exists()
    assert result.success
    retries = [event for event in result.all_events if event.is_step_up_for_retry]
    assert len(retries) == 1
    assert effects_seen() == sorted(ids)
    assert pending() == 0
    assert consumers() == set()


def test_a_retried_run_takes_back_what_the_killed_one_left(
    place, kept_instance, enqueue, effects_seen, pending, consumers
):
    ids = enqueue(10)
    job = dg.reconstructable(dying_job_without_retry)
    first = dg.execute_job(job, instance=kept_instance)
    left_by_first = pending()

    options = dg.ReexecutionOptions(parent_run_id=first.run_id)
    second = dg.execute_job(job, instance=kept_instance, reexecution_options=options)

    assert not first.success
    assert left_by_first > 0
    assert second.success
    assert effects_seen() == sorted(ids)
    assert pending() == 0
    assert consumers() == set()


def test_a_new_run_leaves_alone_what_another_run_has_pending(
    spec, resources, instance, enqueue, make_queue, effects_seen
):
    ids = enqueue(10)
    make_queue("another-run.drain.0").read(block_ms=100, count=4)

    result = build_drain_job(spec).execute_in_process(resources=resources, instance=instance)

    assert result.success
    assert effects_seen() == sorted(ids[4:])


def test_earlier_attempts_are_those_of_the_same_step_in_this_run_and_in_the_runs_it_retries():
    attempt = Attempt(run_id=RUN, step="drain", retry_number=2, earlier_runs=(OLDER, OLDEST))
    names = [
        *(f"{RUN}.drain.{n}" for n in range(4)),
        *(f"{OLDER}.drain.0", f"{OLDEST}.drain.7", f"{OLDER}.other.0", "run-9.drain.0"),
        *(f"{RUN}.drain.x", f"{RUN}.drain", "worker-1"),
    ]

    assert attempt.earlier_names(names) == [
        f"{OLDEST}.drain.7",
        f"{OLDER}.drain.0",
        f"{RUN}.drain.0",
        f"{RUN}.drain.1",
    ]


def test_every_attempt_at_the_same_work_has_one_work_id():
    first = Attempt(run_id=OLDEST, step="enqueue", retry_number=0)
    last = Attempt(run_id=RUN, step="enqueue", retry_number=1, earlier_runs=(OLDER, OLDEST))

    assert first.work_id == last.work_id
    assert first.consumer_name != last.consumer_name
