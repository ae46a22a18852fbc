"""Tasks that do nothing, results kept: ours next to the fastest other, and streaq's published script."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
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


#: By so many tasks it is found out which are the fastest of the others, and so many of them are timed again.
_FIRST, _FINALISTS = 1_000, 2
#: For ours and for them.
_TOTAL = 3_000


@contextmanager
def trial_of(name: str) -> Iterator[Trial]:
    """A trial of the system with this name."""
    [system] = [system for system in SYSTEMS if system.name == name]
    try:
        programs = programs_in()
    except (OSError, subprocess.CalledProcessError) as error:
        raise UnavailableError(f"the other systems could not be installed: {error}") from error
    with TemporaryDirectory() as directory:
        yield Trial(system=system, programs=programs, directory=Path(directory))


def per_second(name: str, total: int = _TOTAL) -> float:
    """Tasks a second of the system with this name."""
    with trial_of(name) as trial:
        return trial.per_second(total=total)


@lru_cache(maxsize=1)
def fastest_peers(_bench: Bench) -> list[str]:
    """The names of those that may be the fastest: the others are slower by far."""
    rates = {name: per_second(name, _FIRST) for name in _PEERS}
    return sorted(rates, key=lambda name: rates[name])[-_FINALISTS:]


def times_the_best(bench: Bench) -> float:
    """How many times as fast ours is as the fastest of the others."""
    return per_second(_OURS) / max(per_second(name) for name in fastest_peers(bench))


def seconds_of_script(name: str, workers: int) -> float:
    """As streaq's published script: 20,000 tasks, first to last, 32 at once in each worker."""
    with trial_of(name) as trial:
        return trial.seconds(total=20_000, concurrency=32, workers=workers)


MEASUREMENTS: list[Measurement] = [
    Figure(
        name=f"no-op tasks with results, one worker process / best of {', '.join(_PEERS)}",
        unit="ratio",
        take=times_the_best,
        better="more",
        bar=3,
        rounds=3,
    ),
    *(
        Figure(
            name=f"streaq's script, 20,000 tasks, concurrency 32, workers {workers}: {name}",
            unit="s",
            take=lambda _bench, name=name, workers=workers: seconds_of_script(name, workers),
        )
        for workers in (1, 10)
        # `make peers ARGS=--speed` has all that can run it.
        for name in (_OURS, "streaq")
    ),
]
