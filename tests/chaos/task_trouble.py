"""The trouble of a run of tasks: workers, children of their pools, the server and the database."""

from __future__ import annotations

from typing import ClassVar

from tests.chaos.task_plan import HEARTBEAT_TTL_S
from tests.chaos.trouble import Kind, Trouble

_WEIGHTS: dict[Kind, int] = {
    "kill": 5,
    "stop": 4,
    "kill_child": 6,
    "stop_child": 4,
    "leave": 2,
    "restart": 3,
    "full": 1,
    "read_only": 1,
}
TASK_KINDS = (*_WEIGHTS,)


class TaskTrouble(Trouble):
    """Makes trouble for workers of tasks, each kind at least once."""

    weights: ClassVar[dict[Kind, int]] = _WEIGHTS
    silence_s: ClassVar[float] = HEARTBEAT_TTL_S
