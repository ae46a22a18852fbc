"""A worker keeps nothing of the tasks that it has run."""

from __future__ import annotations

import gc
import logging
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise

import pytest

from conquiet.tasks import TaskApp
from tests.eventually import eventually
from tests.with_redis.tasks.conftest import StartWorker

_WARM_UP, _TASKS, _ROUNDS = 1_000, 1_500, 3
#: Half of the smallest thing that could be kept of a task, its id.
_BYTES_OF_A_TASK = 40


@pytest.fixture
def traced() -> Iterator[None]:
    # pytest keeps each record of a log, with its traceback.
    logging.disable(logging.CRITICAL)
    tracemalloc.start()
    yield
    tracemalloc.stop()
    logging.disable(logging.NOTSET)


@pytest.fixture
def server_url(valkey_url: str) -> str:
    """One kind of server says all."""
    return valkey_url


@pytest.mark.usefixtures("traced")
def test_the_memory_of_a_worker_does_not_grow_with_its_tasks(app: TaskApp, start: StartWorker) -> None:
    @app.task
    def succeed(number: int) -> int:
        return number

    @app.task(max_retries=0)
    def fail(number: int) -> None:
        raise ValueError(number)

    def run(count: int) -> int:
        succeed.enqueue_many({"number": number} for number in range(count * 9 // 10))
        fail.enqueue_many({"number": number} for number in range(count // 10))
        eventually(lambda: app.control.queue("default").queued == 0)
        eventually(lambda: app.control.queue("default").in_flight == 0)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    start(concurrency=2)
    sizes = [run(_WARM_UP), *(run(_TASKS) for _ in range(_ROUNDS))]

    # In one round there may be another connection, with its buffer; what is kept of each task grows in all.
    assert min(after - before for before, after in pairwise(sizes)) < _TASKS * _BYTES_OF_A_TASK
