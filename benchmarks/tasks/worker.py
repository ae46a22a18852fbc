"""How soon an idle worker begins a task, and by how much its memory grows."""

from __future__ import annotations

import gc
import os
import secrets
import subprocess
import sys
import time
from functools import lru_cache
from statistics import quantiles

import psutil

from benchmarks.bench import Bench
from benchmarks.core.memory import status_mb
from benchmarks.errors import BenchmarkError, UnavailableError
from benchmarks.measurement import Figure, Measurement
from benchmarks.tasks.memory_app import NAMESPACE, SERVER, app
from benchmarks.tasks.queue_work import PYTHON
from conquiet.tasks import ProcessWorker, TaskApp, Worker, WorkerConfig

_CALLS = 500
#: From one call to the next, so that the worker waits again.
_PAUSE_S = 0.01
_WARM_UP, _TASKS, _BATCH = 2_000, 100_000, 10_000
_PROCESSES = 2


@lru_cache(maxsize=1)
def latencies_ms(bench: Bench) -> list[float]:
    """From `enqueue` to the first line of the function, of an idle worker in a process of its own."""
    namespace = f"bench:{secrets.token_hex(4)}"
    command = [*PYTHON, "benchmarks.tasks.worker", "serve", bench.server.url, namespace]
    with TaskApp(bench.server.url, namespace=namespace) as caller:
        process = subprocess.Popen(command)
        try:
            found = []
            for number in range(-50, _CALLS):
                called = time.time()
                begun = caller.enqueue("begin", {}).result(timeout_s=60)
                if number >= 0:
                    found.append((begun - called) * 1000)
                time.sleep(_PAUSE_S)
            return found
        finally:
            process.kill()
            process.wait()


@lru_cache(maxsize=1)
def memory_growth_mb(bench: Bench) -> dict[str, float]:
    """How far the peak of a worker's process lies above its start while it runs 100,000 tasks, by its pool.

    Of the pool of processes the one counts that grows most. Both run at the same time: no time is measured.
    """
    if not os.path.exists("/proc/self/status"):
        raise UnavailableError("the peak memory of a process is read from /proc, which is not here")
    running: dict[str, subprocess.Popen[str]] = {}
    try:
        for pool in ("grow", "grow-processes"):
            namespace = f"bench:{secrets.token_hex(4)}"
            command = [*PYTHON, "benchmarks.tasks.worker", pool, bench.server.url, namespace]
            environment = os.environ | {SERVER: bench.server.url, NAMESPACE: namespace}
            running[pool] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        growth = {}
        for pool, process in running.items():
            said, _ = process.communicate(timeout=600)
            if process.returncode:
                raise BenchmarkError(f"{pool} of a worker ended with exit code {process.returncode}")
            growth[pool] = float(said)
        return growth
    finally:
        for process in running.values():
            process.kill()
            process.wait()


def _app(url: str, namespace: str) -> TaskApp:
    served = TaskApp(url, namespace=namespace)

    @served.task(name="begin")
    def begin() -> float:
        return time.time()

    return served


def _serve(url: str, namespace: str) -> None:
    worker = Worker(_app(url, namespace), WorkerConfig(pool="thread", concurrency=1))
    worker.start()
    worker.join()


def _grow(url: str, namespace: str) -> float:
    served = _app(url, namespace)
    begin = served.tasks["begin"]

    def run(count: int) -> None:
        begin.with_options(result_ttl_s=1).enqueue_many({} for _ in range(count))
        while (stats := served.control.queue("default")).queued + stats.in_flight + stats.waiting:
            time.sleep(0.05)

    with Worker(served, WorkerConfig(pool="thread", concurrency=2)):
        run(_WARM_UP)
        run(_BATCH)
        gc.collect()
        before = status_mb("VmRSS")
        for _ in range(_TASKS // _BATCH):
            run(_BATCH)
        return status_mb("VmHWM") - before


def _grow_processes(_url: str, _namespace: str) -> float:
    begin = app.tasks["begin"]

    def run(count: int) -> None:
        begin.enqueue_many({} for _ in range(count))
        while (stats := app.control.queue("default")).queued + stats.in_flight + stats.waiting:
            time.sleep(0.05)

    config = WorkerConfig(pool="process", concurrency=_PROCESSES)
    with ProcessWorker("benchmarks.tasks.memory_app:app", config):
        run(_WARM_UP)
        run(_BATCH)
        pids = [child.pid for child in psutil.Process().children()]
        before = {pid: status_mb("VmRSS", pid) for pid in pids}
        for _ in range(_TASKS // _BATCH):
            run(_BATCH)
        return max(status_mb("VmHWM", pid) - before[pid] for pid in pids)


MEASUREMENTS: list[Measurement] = [
    Figure(
        name="from enqueue to the start of a task, idle, p50",
        unit="ms",
        take=lambda bench: quantiles(latencies_ms(bench), n=100)[49],
        bar=3,
    ),
    Figure(
        name="from enqueue to the start of a task, idle, p99",
        unit="ms",
        take=lambda bench: quantiles(latencies_ms(bench), n=100)[98],
        bar=20,
    ),
    Figure(
        name="memory growth over 100,000 tasks",
        unit="MB",
        take=lambda bench: memory_growth_mb(bench)["grow"],
        bar=50,
    ),
    Figure(
        name="memory growth of a process of a pool over 100,000 tasks",
        unit="MB",
        take=lambda bench: memory_growth_mb(bench)["grow-processes"],
        bar=50,
    ),
]

if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(*sys.argv[2:])
    elif sys.argv[1] == "grow-processes":
        print(_grow_processes(*sys.argv[2:]))
    else:
        print(_grow(*sys.argv[2:]))
