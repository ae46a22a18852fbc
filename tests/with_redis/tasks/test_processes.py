"""The process pool: children that die, are killed, replaced and stopped, and what becomes of their tasks."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client import REGISTRY

from conquiet.tasks import ProcessWorker, TaskFailedError, TaskHandle, WorkerConfig
from conquiet.tasks.keys import GROUP
from tests.cli.processes import exists
from tests.eventually import eventually
from tests.with_redis.tasks import process_app
from tests.with_redis.tasks.process_app import app

PATIENCE_S = 600.0
#: So long that nothing in these tests comes from a heartbeat that ended.
NEVER_S = 3600.0

Start = Callable[..., ProcessWorker]
APP = "tests.with_redis.tasks.process_app:app"


@pytest.fixture
def queue() -> str:
    return f"q-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def start(valkey_url: str, queue: str) -> Iterator[Start]:
    app.use_server(valkey_url)
    with ExitStack() as running:

        def begin(**config: Any) -> ProcessWorker:
            values: dict[str, Any] = {"concurrency": 1, "heartbeat_ttl_s": NEVER_S} | config
            worker = ProcessWorker(
                APP, WorkerConfig(queues=(queue,), **values), url=valkey_url, log_level="info"
            )
            running.callback(worker.join)
            running.callback(worker.kill)
            worker.start()
            return worker

        yield begin
    app.close()


def begun(path: Path) -> int:
    """The process in which `wait_for` runs."""
    file = path.with_name(f"{path.name}.begun")
    eventually(file.exists)
    return int(file.read_text())


def cmdline(process: psutil.Process) -> str:
    return " ".join(process.cmdline())


def error_of(handle: TaskHandle) -> str:
    with pytest.raises(TaskFailedError) as caught:
        handle.result(PATIENCE_S)
    return caught.value.error


def test_the_task_of_a_killed_child_is_retried_at_once(start: Start, queue: str, tmp_path: Path) -> None:
    start(concurrency=2)
    handle = process_app.wait_for.with_options(queue=queue, max_retries=1).enqueue(path=str(tmp_path / "go"))
    other = process_app.wait_for.with_options(queue=queue).enqueue(path=str(tmp_path / "other"))
    sibling = begun(tmp_path / "other")

    os.kill(begun(tmp_path / "go"), signal.SIGKILL)

    assert handle.result(PATIENCE_S) == 1
    status = handle.status()
    assert status is not None
    [retried] = [step for step in status.history if step.state == "retried"]
    assert "killed by signal 9 (SIGKILL)" in retried.facts["error"]
    (tmp_path / "other").touch()
    assert other.result(PATIENCE_S) == 0
    assert begun(tmp_path / "other") == sibling


def test_what_a_killed_child_had_reserved_is_run_without_an_attempt(start: Start, queue: str) -> None:
    killed = process_app.kill_yourself.with_options(queue=queue).enqueue(number=int(signal.SIGKILL))
    task = process_app.process_id.with_options(queue=queue)
    reserved = [task.enqueue() for _ in range(3)]
    start(prefetch_multiplier=4)

    results = [handle.result(PATIENCE_S) for handle in reserved]

    assert [attempt for _, attempt in results] == [0, 0, 0]
    assert "killed by signal 9" in error_of(killed)


def test_what_ended_before_the_task_of_a_killed_child_is_not_run_again(
    start: Start, queue: str, tmp_path: Path
) -> None:
    first = process_app.process_id.with_options(queue=queue).enqueue()
    killed = process_app.wait_for.with_options(queue=queue, max_retries=0).enqueue(path=str(tmp_path / "go"))
    # Both are read at once, by one child.
    start()
    child, _ = first.result(PATIENCE_S)
    assert begun(tmp_path / "go") == child
    os.kill(child, signal.SIGKILL)

    assert "killed by signal 9" in error_of(killed)
    status = first.status()
    assert status is not None
    assert [step.state for step in status.history] == ["queued", "running", "succeeded"]


def test_a_worker_survives_that_its_first_child_is_killed_before_it_is_ready(
    start: Start, queue: str
) -> None:
    worker = start()
    # Its interpreter has just started.
    first = eventually(
        lambda: [one for one in psutil.Process().children() if "conquiet.tasks" in cmdline(one)]
    )
    first[0].kill()

    task = process_app.process_id.with_options(queue=queue)
    assert task.enqueue().result(PATIENCE_S)[1] == 0
    assert worker.is_running


def test_a_child_that_ends_in_a_task_fails_the_attempt_with_its_exit_code(start: Start, queue: str) -> None:
    start()
    left = process_app.leave.with_options(queue=queue).enqueue(code=3)
    crashed = process_app.kill_yourself.with_options(queue=queue).enqueue(number=int(signal.SIGSEGV))
    exited = process_app.exit_politely.with_options(queue=queue).enqueue()

    assert "ended with exit code 3" in error_of(left)
    assert "killed by signal 11 (SIGSEGV)" in error_of(crashed)
    assert "sys.exit('enough')" in error_of(exited)
    assert "raised KeyboardInterrupt" in error_of(
        process_app.press_ctrl_c.with_options(queue=queue).enqueue()
    )


def test_a_hard_limit_kills_the_task_and_what_it_started_and_no_sibling(
    start: Start, queue: str, tmp_path: Path
) -> None:
    worker = start(concurrency=2)
    other = process_app.wait_for.with_options(queue=queue).enqueue(path=str(tmp_path / "go"))
    sibling = begun(tmp_path / "go")

    hung = process_app.hang.with_options(queue=queue).enqueue(path=str(tmp_path / "pid"))

    assert "hard time limit of 0.3 s" in error_of(hung)
    grandchild = int((tmp_path / "pid").read_text())
    eventually(lambda: not exists(grandchild) or _is_zombie(grandchild))
    assert sibling in worker.pids
    (tmp_path / "go").touch()
    assert other.result(PATIENCE_S) == 0


def test_a_hard_limit_is_counted_with_the_time_that_the_task_took(
    start: Start, queue: str, tmp_path: Path
) -> None:
    labels = {"task": process_app.hang.name, "queue": queue}
    start()

    error_of(process_app.hang.with_options(queue=queue).enqueue(path=str(tmp_path / "pid")))

    eventually(lambda: REGISTRY.get_sample_value("conquiet_tasks_hard_limits_total", labels) == 1)
    seconds = REGISTRY.get_sample_value("conquiet_tasks_duration_seconds_sum", labels)
    assert seconds is not None
    assert seconds >= 0.3


def test_a_soft_limit_is_raised_in_a_task_that_sleeps(start: Start, queue: str) -> None:
    start()
    caught = process_app.sleep_for_long.with_options(queue=queue).enqueue()
    failed = process_app.sleep_without_care.with_options(queue=queue).enqueue()

    assert "soft time limit of 0.2 s" in caught.result(PATIENCE_S)
    assert "SoftTimeLimitError" in error_of(failed)
    after = process_app.process_id.with_options(queue=queue).enqueue()
    assert after.result(PATIENCE_S)[1] == 0


def test_a_child_is_replaced_after_so_many_tasks_and_hooks_are_called_in_each(
    start: Start, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONQUIET_TEST_HOOKS", str(tmp_path))
    task = process_app.process_id.with_options(queue=queue)
    handles = [task.enqueue() for _ in range(4)]
    worker = start(max_tasks_per_child=2)

    results = [handle.result(PATIENCE_S) for handle in handles]
    worker.stop()
    worker.join()

    assert [attempt for _, attempt in results] == [0] * 4
    processes = {process for process, _ in results}
    assert len(processes) == 2
    for process in processes:
        assert (tmp_path / f"started.{process}").exists()
        assert (tmp_path / f"ended.{process}").exists()


def test_a_child_is_replaced_when_it_has_too_much_memory(start: Start, queue: str) -> None:
    task = process_app.process_id.with_options(queue=queue)
    handles = [task.enqueue() for _ in range(2)]
    start(max_memory_mb=1)

    processes = {handle.result(PATIENCE_S)[0] for handle in handles}

    assert len(processes) == 2


def test_a_worker_that_stops_finishes_what_runs_and_hands_back_the_rest(
    start: Start, queue: str, tmp_path: Path
) -> None:
    running = process_app.wait_for.with_options(queue=queue).enqueue(path=str(tmp_path / "go"))
    waiting = process_app.process_id.with_options(queue=queue).enqueue()
    worker = start()
    pid = begun(tmp_path / "go")

    worker.stop()
    (tmp_path / "go").touch()
    worker.join()

    assert running.result(PATIENCE_S) == 0
    assert not exists(pid)
    keys = app.keys(queue)
    consumers = app.client.xinfo_consumers(keys.streams[5], GROUP)
    assert {consumer["name"] for consumer in consumers if consumer["pending"]} <= {b"@waiting"}
    start()
    assert waiting.result(PATIENCE_S)[1] == 0


def test_a_worker_that_is_killed_fails_what_runs(start: Start, queue: str, tmp_path: Path) -> None:
    running = process_app.wait_for.with_options(queue=queue).enqueue(path=str(tmp_path / "go"))
    worker = start()
    begun(tmp_path / "go")

    worker.kill()
    worker.join()

    assert "stopped at once" in error_of(running)


def _is_zombie(pid: int) -> bool:
    """Whether it has ended, and whoever inherited it has not looked yet."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"
