"""What the library takes by being there: memory while it drains, time and modules when it is imported."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.core import memory
from benchmarks.errors import BenchmarkError, UnavailableError
from benchmarks.measurement import Figure, Measurement
from benchmarks.workload import orders_to_ignore

_UNWANTED = ("airflow", "dagster", "pyspark", "sqlalchemy.orm")
_TIMEOUT_S = 120


def memory_growth_mb(bench: Bench) -> float:
    """How far the peak of a fresh process lies above its start while it drains 100,000 messages."""
    if not os.path.exists("/proc/self/status"):
        raise UnavailableError("the peak memory of a process is read from /proc, which is not here")
    with orders_to_ignore(bench, memory.WARM_UP) as work:
        for _ in range(memory.MESSAGES // work.messages):
            work.queue.enqueue_many(work.payloads)
        return float(
            _python("-m", "benchmarks.core.memory", bench.server.url, work.stream, str(bench.directory))
        )


def import_ms(_bench: Bench) -> float:
    """How much longer an interpreter lives that imports conquiet."""
    return _lifetime_ms("import conquiet") - _lifetime_ms("pass")


def import_all_ms(_bench: Bench) -> float:
    """How much longer an interpreter lives that imports every public name: redis-py and SQLAlchemy too."""
    return _lifetime_ms("from conquiet import *") - _lifetime_ms("pass")


def import_producer_ms(_bench: Bench) -> float:
    """How much longer an interpreter lives that imports what a producer needs."""
    return _lifetime_ms("from conquiet import QueueConfig, RedisStreamsQueue") - _lifetime_ms("pass")


def import_redis_ms(_bench: Bench) -> float:
    """The same for redis-py alone, whose packages for tracing it imports if they are installed."""
    return _lifetime_ms("import redis") - _lifetime_ms("pass")


def version_ms(_bench: Bench) -> float:
    """How long `conquiet --version` takes, with its interpreter."""
    started = time.perf_counter()
    _run(str(Path(sys.executable).with_name("conquiet")), "--version")
    return (time.perf_counter() - started) * 1000


def unwanted_modules(_bench: Bench) -> float:
    """How many modules `import conquiet` loads that most of its users do not need."""
    loaded = _python("-c", f"import sys, conquiet; print(sum(name in sys.modules for name in {_UNWANTED}))")
    return float(loaded)


def _lifetime_ms(statement: str) -> float:
    started = time.perf_counter()
    _python("-c", statement)
    return (time.perf_counter() - started) * 1000


def _python(*arguments: str) -> str:
    return _run(sys.executable, *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        raise BenchmarkError(f"{' '.join(command)} failed: {done.stderr}")
    return done.stdout


MEASUREMENTS: list[Measurement] = [
    Figure(name="memory growth over 100,000 drained messages", unit="MB", take=memory_growth_mb, bar=50),
    Figure(name="import conquiet", unit="ms", take=import_ms, bar=100, rounds=15),
    Figure(
        name="heavy modules after import conquiet",
        unit="modules",
        take=unwanted_modules,
        bar=0,
    ),
    Figure(
        name="from conquiet import QueueConfig, RedisStreamsQueue",
        unit="ms",
        take=import_producer_ms,
        bar=60,
        rounds=15,
    ),
    Figure(name="import redis, for reference", unit="ms", take=import_redis_ms, rounds=15),
    Figure(name="conquiet --version", unit="ms", take=version_ms, bar=150, rounds=15),
    Figure(name="from conquiet import *", unit="ms", take=import_all_ms, rounds=5),
]
