"""TaskTry: which consumers are earlier tries of the same task instance."""

from __future__ import annotations

from airflow_provider_conquiet.task_try import TaskTry


def test_only_names_that_a_try_writes_are_tries():
    third = TaskTry(dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=3)
    prefix = third.consumer_name[:-1]

    names = [f"{prefix}{ending}" for ending in ("1", "2", "3", "²", "٤", "x", "\\xff", "")]

    assert third.others_among(["worker-\\xff", *names]) == [f"{prefix}1", f"{prefix}2"]
