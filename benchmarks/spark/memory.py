"""By how much the memory of a worker grows while it reads and while it writes, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.measurement import Figure, Measurement
from benchmarks.spark.session import ROWS
from benchmarks.spark.work import filled_stream

_ROOT = Path(__file__).parents[2]


def growth_mb(bench: Bench, work: str) -> float:
    """What the process prints."""
    with filled_stream(bench, ROWS) as filled:
        command = [sys.executable, "-m", "benchmarks.spark.worker", work, filled.url, filled.stream]
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True)
    return float(done.stdout)


MEASUREMENTS: list[Measurement] = [
    Figure(
        name=f"growth of a worker that {work}s 1,000,000 rows",
        unit="MB",
        take=partial(growth_mb, work=work),
        bar=64,
    )
    for work in ("read", "write")
]
