"""Control of the process pool: children see to their tasks, the parent to its children."""

from __future__ import annotations

from pathlib import Path

import pytest

from conquiet.tasks import TaskFailedError
from tests.eventually import eventually
from tests.with_redis.tasks import process_app
from tests.with_redis.tasks.process_app import app
from tests.with_redis.tasks.test_processes import PATIENCE_S, Start, begun, queue, start

__all__ = ["queue", "start"]  # fixtures


def processes_of(name: str, number: int) -> list[str]:
    """The names of a worker's processes, its parent first, once they are there."""

    def found() -> list[str]:
        return [one.name for one in app.control.workers() if name in (one.name, one.parent)]

    return eventually(lambda: names if len(names := found()) == number else None) or []


def test_a_worker_is_listed_with_its_children_and_all_of_them_answer(start: Start, queue: str) -> None:
    start(concurrency=2, name=queue)
    names = processes_of(queue, 3)

    answers = app.control.ping([queue], timeout_s=PATIENCE_S)

    assert answers.keys() == set(names)
    assert len({answer["pid"] for answer in answers.values() if answer is not None}) == 3


def test_a_worker_with_many_children_is_shut_down_once_its_tasks_have_ended(
    start: Start, queue: str, tmp_path: Path
) -> None:
    worker = start(concurrency=3, name=queue)
    task = process_app.wait_for.with_options(queue=queue)
    handles = [task.enqueue(path=str(tmp_path / str(number))) for number in range(3)]
    for number in range(3):
        begun(tmp_path / str(number))

    answers = app.control.shutdown([queue], timeout_s=PATIENCE_S)
    for number in range(3):
        (tmp_path / str(number)).touch()
    worker.join()

    assert answers == {queue: {"hard": False}}
    assert [handle.result(PATIENCE_S) for handle in handles] == [0, 0, 0]
    assert not [one for one in app.control.workers() if queue in (one.name, one.parent)]


def test_a_hard_shutdown_hands_back_what_children_run_as_no_attempt(
    start: Start, queue: str, tmp_path: Path
) -> None:
    worker = start(name=queue)
    handle = process_app.wait_for.with_options(queue=queue).enqueue(path=str(tmp_path / "go"))
    begun(tmp_path / "go")
    app.control.shutdown([queue], hard=True, timeout_s=PATIENCE_S)
    worker.join()
    (tmp_path / "go").touch()
    start()

    assert handle.result(PATIENCE_S) == 0


def test_a_hard_shutdown_is_no_attempt_whatever_the_task_makes_of_its_interruption(
    start: Start, queue: str, tmp_path: Path
) -> None:
    worker = start(name=queue)
    handle = process_app.fail_when_interrupted.with_options(queue=queue).enqueue(path=str(tmp_path / "go"))
    begun(tmp_path / "go")
    app.control.shutdown([queue], hard=True, timeout_s=PATIENCE_S)
    worker.join()
    (tmp_path / "go").touch()
    start()

    assert handle.result(PATIENCE_S) == 0


def test_a_child_that_sleeps_in_a_task_is_interrupted_when_it_is_revoked(start: Start, queue: str) -> None:
    start(name=queue)
    handle = process_app.sleep_without_care.with_options(queue=queue, soft_time_limit_s=3_000).enqueue()
    eventually(lambda: (status := handle.status()) is not None and status.state == "running")

    handle.revoke(terminate=True)

    with pytest.raises(TaskFailedError, match="revoked while it ran"):
        handle.result(PATIENCE_S)
    assert process_app.process_id.with_options(queue=queue).enqueue().result(PATIENCE_S)[1] == 0
