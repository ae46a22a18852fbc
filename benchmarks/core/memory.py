"""A process of its own that drains 100,000 messages and prints by how many megabytes its memory grew."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

from benchmarks.databases import open_database
from benchmarks.workload import CONSUMER, GROUP, insert_order
from conquiet import DrainLimits, QueueConfig, RedisStreamsQueue, drain

#: Drained before the baseline is taken, so that imports and caches do not count as growth.
WARM_UP = 1_000
MESSAGES = 100_000


def growth_mb(url: str, stream: str, directory: Path) -> float:
    """The peak of the resident memory less what it was after the warm-up."""
    config = QueueConfig(stream, GROUP, CONSUMER)
    with RedisStreamsQueue.from_url(url, config) as queue, open_database("sqlite", directory) as database:
        drain(queue, insert_order, database.ours, DrainLimits(max_messages=WARM_UP))
        gc.collect()
        baseline = status_mb("VmRSS")
        drain(queue, insert_order, database.ours, DrainLimits(max_messages=MESSAGES))
        return status_mb("VmHWM") - baseline


def status_mb(field: str, process: int | str = "self") -> float:
    """A line of the status of a process, such as `VmRSS`."""
    # Not `resource.getrusage`: a child starts there with the peak of the process that forked it.
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise LookupError(f"/proc/{process}/status has no {field}")


if __name__ == "__main__":
    print(growth_mb(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
