"""What a chaos run of tasks is made of: its jobs, their durations, and what else they do to their workers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from tests.chaos.plan import WorkerOrder

NAMESPACE = "chaos"
#: Tasks with a session, which threads and processes run; and coroutines, which nearly nothing but an event
#: loop runs.
DB, NAP = "db", "nap"
QUEUES = (DB, NAP)
HEARTBEAT_TTL_S = 4.0
#: Enough for a task that is in the hands of many workers as they are killed.
MAX_RETRIES = 30
LONGEST_S = 5.0

Kind = Literal["effect", "nap", "doomed", "chord", "chain"]
#: Tasks that take a session, and write one row.
WITH_EFFECT = frozenset(("effect", "join", "after"))
_SHARES: dict[Kind, float] = {"nap": 0.4, "effect": 0.4, "doomed": 0.02, "chord": 0.08, "chain": 0.1}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """The size of a run; with the same seed the same tasks and the same kinds of trouble."""

    tasks: int = 20_000
    #: There is trouble for as long as tasks are sent, and at least for this time.
    noisy_s: float = 20.0
    #: From one trouble to the next, on average.
    trouble_every_s: float = 1.5
    #: No more tasks than this are sent and not finished.
    backlog: int = 500
    workers: int = 6
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is enqueued in one call."""

    kind: Kind
    #: The numbers of its tasks, which no other one has; the last one of a chord is its body's.
    numbers: tuple[int, ...]
    #: Whether one member of the chord fails for good.
    is_doomed: bool = False

    @property
    def id(self) -> str:
        """Of a canvas."""
        return f"{self.kind}-{self.numbers[0]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWorkerOrder(WorkerOrder):
    """As of any worker; its name says which pool it has."""

    module: ClassVar[str] = "tests.chaos.task_worker"

    @property
    def pool(self) -> Literal["process", "thread", "async"]:
        """Each of the three in turn."""
        return ("process", "thread", "async")[int(self.name.rpartition("-")[2]) % 3]


def jobs(plan: TaskPlan) -> Iterator[Job]:
    """All of a run, in order."""
    rng, number = random.Random(f"{plan.seed}:jobs"), 0
    while number < plan.tasks:
        kind = rng.choices([*_SHARES], weights=[*_SHARES.values()])[0]
        size = {"chord": rng.randint(3, 9), "chain": 2}.get(kind, 1)
        numbers = tuple(range(number, number + size))
        yield Job(kind=kind, numbers=numbers, is_doomed=kind == "chord" and rng.random() < 0.1)
        number += size


def duration_s(seed: int, number: int, *, mean_s: float) -> float:
    """How long a task takes; the same in every process."""
    return min(LONGEST_S, random.Random(f"{seed}:duration:{number}").expovariate(1 / mean_s))


def is_deadly(seed: int, number: int) -> bool:
    """Whether the first attempt at a task kills its process."""
    return random.Random(f"{seed}:deadly:{number}").random() < 0.001
