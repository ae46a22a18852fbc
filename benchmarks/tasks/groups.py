"""A chord over a group of 100,000 tasks, and such a group revoked in the middle: time, memory, keys."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import lru_cache

from benchmarks.bench import Bench
from benchmarks.core.memory import status_mb
from benchmarks.errors import BenchmarkError
from benchmarks.measurement import Figure, Measurement
from benchmarks.tasks.queue_work import PYTHON
from conquiet.cli.signals import received_signals
from conquiet.tasks import Task, TaskApp, Worker, WorkerConfig, chord, group
from conquiet.tasks.worker.run import run_until_signals

_MEMBERS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run took; memory above what was there before it."""

    enqueue_s: float
    until_body_s: float
    caller_mb: float
    worker_mb: float
    server_mb: float
    #: Of a key that is no queue: a record, a group, or a part of its results.
    largest_key_mb: float
    #: Of the second group: members that ran after it was revoked.
    ran_after_revoke: int
    #: From the call until nothing of it is left in the queue.
    revoke_s: float


@lru_cache(maxsize=1)
def run_of(bench: Bench) -> Run:
    """Enqueue, run and revoke, in processes of their own."""
    namespace = f"bench:{secrets.token_hex(4)}"
    before_mb = bench.client.info("memory")["used_memory"] / 1e6
    bench.client.config_resetstat()
    with _process("serve", bench.server.url, namespace) as worker:
        caller = _process("call", bench.server.url, namespace)
        said, _ = caller.communicate(timeout=1_800)
        if caller.returncode:
            raise BenchmarkError(f"the caller of a group ended with {caller.returncode}")
        worker.terminate()
        worker_mb = float(worker.communicate(timeout=60)[0])
    peak_mb = bench.client.info("memory")["used_memory_peak"] / 1e6
    for start in bench.client.scan_iter(f"{namespace}:*", count=10_000):
        bench.client.unlink(start)
    return Run(worker_mb=worker_mb, server_mb=peak_mb - before_mb, **json.loads(said))


def _process(part: str, url: str, namespace: str) -> subprocess.Popen[str]:
    command = [*PYTHON, "benchmarks.tasks.groups", part, url, namespace]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _app(url: str, namespace: str) -> tuple[TaskApp, Task[..., int], Task[..., int]]:
    app = TaskApp(url, namespace=namespace)

    @app.task(name="member")
    def member(number: int) -> int:
        return number

    @app.task(name="body")
    def body(numbers: list[int]) -> int:
        return sum(numbers) if numbers == [*range(_MEMBERS)] else -1

    return app, member, body


def _serve(url: str, namespace: str) -> float:
    """Work until SIGTERM; how far the memory has grown."""
    app, _, _ = _app(url, namespace)
    with received_signals() as received:
        before_mb = status_mb("VmRSS")
        run_until_signals(Worker(app, WorkerConfig(pool="thread", concurrency=4)), received)
    return status_mb("VmHWM") - before_mb


def _call(url: str, namespace: str) -> dict[str, float]:
    app, member, body = _app(url, namespace)
    member.enqueue(0).result(timeout_s=60)
    before_mb, begun = status_mb("VmRSS"), time.monotonic()
    handle = chord((member.call(number) for number in range(_MEMBERS)), body.partial()).enqueue()
    enqueue_s = time.monotonic() - begun
    if handle.result(timeout_s=1_200) != sum(range(_MEMBERS)):
        raise BenchmarkError("the body of the chord did not get the results of its members in their order")
    until_body_s = time.monotonic() - begun
    keys = app.keys("default")
    largest = max(
        int(app.client.memory_usage(key, samples=0) or 0)
        for key in app.client.scan_iter(f"{keys.prefix}:group:*", count=10_000)
    )

    second = group(member.call(number) for number in range(_MEMBERS)).enqueue()
    while second.status().left > _MEMBERS // 2:
        time.sleep(0.01)
    begun = time.monotonic()
    second.revoke()
    done = _MEMBERS - second.status().left
    while app.control.queue("default").queued or second.status().left:
        time.sleep(0.1)
    status = second.status()
    return {
        "enqueue_s": enqueue_s,
        "until_body_s": until_body_s,
        "caller_mb": status_mb("VmHWM") - before_mb,
        "largest_key_mb": largest / 1e6,
        "ran_after_revoke": _MEMBERS - status.failed - done,
        "revoke_s": time.monotonic() - begun,
    }


def _figure(name: str, unit: str, field: str) -> Figure:
    return Figure(
        name=f"group of 100,000: {name}", unit=unit, take=lambda bench: getattr(run_of(bench), field)
    )


MEASUREMENTS: list[Measurement] = [
    _figure("enqueued after", "s", "enqueue_s"),
    _figure("the body of its chord has ended after", "s", "until_body_s"),
    _figure("memory of the caller, growth", "MB", "caller_mb"),
    _figure("memory of the worker, growth", "MB", "worker_mb"),
    _figure("memory of the server, growth of the peak", "MB", "server_mb"),
    _figure("largest of its keys", "MB", "largest_key_mb"),
    _figure("members that ran after it was revoked", "", "ran_after_revoke"),
    _figure("all of its members have ended after a revoke", "s", "revoke_s"),
]

if __name__ == "__main__":
    if sys.argv[1] == "serve":
        print(_serve(*sys.argv[2:]))
    else:
        print(json.dumps(_call(*sys.argv[2:])))
