"""Workers, their children, the server and the database fail at random; every task ends once."""

from __future__ import annotations

import os
import random

import pytest

from tests.chaos.task_plan import TaskPlan
from tests.chaos.task_run import run_task_chaos
from tests.chaos.task_trouble import TASK_KINDS

_TASKS = int(os.environ.get("CONQUIET_CHAOS_TASKS", "600"))


# It ends by itself when nothing goes on any more.
@pytest.mark.timeout(0)
def test_every_task_succeeds_or_is_a_dead_letter_and_no_chord_is_lost_or_doubled(
    request: pytest.FixtureRequest,
):
    seed = int(os.environ.get("CONQUIET_CHAOS_SEED", random.randrange(1_000_000)))
    plan = TaskPlan(tasks=_TASKS, backlog=150, workers=3, seed=seed)

    figures = run_task_chaos(plan)

    request.node.user_properties.append(("chaos", str(figures)))
    assert figures.violations == [], str(figures)
    assert figures.unfinished == [], str(figures)
    assert figures.sent >= plan.tasks
    assert all(figures.trouble[kind] > 0 for kind in TASK_KINDS), str(figures)
