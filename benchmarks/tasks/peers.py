"""Tasks that do nothing, on one worker process of each system, results kept: ours next to the fastest."""

from __future__ import annotations

import subprocess
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.bench import Bench
from benchmarks.errors import UnavailableError
from benchmarks.measurement import Figure, Measurement
from benchmarks.peers.environment import programs_in
from benchmarks.peers.systems_list import SYSTEMS
from benchmarks.peers.trial import Trial

_OURS = "conquiet tasks"
_PEERS = ("Celery", "Dramatiq", "taskiq, Redis streams", "streaq", "arq", "huey")


@lru_cache(maxsize=16)
def per_second(name: str) -> float:
    """Tasks a second of the system with this name."""
    [system] = [system for system in SYSTEMS if system.name == name]
    try:
        programs = programs_in()
    except (OSError, subprocess.CalledProcessError) as error:
        raise UnavailableError(f"the other systems could not be installed: {error}") from error
    with TemporaryDirectory() as directory:
        return Trial(system=system, programs=programs, directory=Path(directory)).per_second(total=5_000)


def times_the_best(_bench: Bench) -> float:
    """How many times as fast ours is as the fastest of the others."""
    per_second.cache_clear()
    return per_second(_OURS) / max(per_second(name) for name in _PEERS)


MEASUREMENTS: list[Measurement] = [
    Figure(
        name=f"no-op tasks with results, one worker process / best of {', '.join(_PEERS)}",
        unit="ratio",
        take=times_the_best,
        better="more",
        bar=3,
        rounds=3,
    ),
]
