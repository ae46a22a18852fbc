"""Wherever a worker or a caller dies: each task ends once, its effect happens once, and no canvas is lost."""

from __future__ import annotations

import pytest

from conquiet.testing.crash_points import Fault
from tests.crashes.conftest import Explore
from tests.crashes.task_scenarios import TASK_SCENARIOS
from tests.crashes.task_wrong_loops import TASK_WRONG_LOOPS


@pytest.mark.parametrize("fault", ["crash", "lost_answer"])
@pytest.mark.parametrize("scenario", sorted(TASK_SCENARIOS))
def test_no_crash_point_loses_a_task_or_repeats_its_effect(
    explore: Explore, scenario: str, fault: Fault
) -> None:
    exploration = explore(scenario, fault)

    assert exploration.violations == []
    assert len(exploration.points) >= (5 if scenario.startswith("task_enqueue") else 15)


@pytest.mark.parametrize("scenario", sorted(TASK_WRONG_LOOPS))
def test_the_explorer_catches_what_loses_or_repeats(explore: Explore, scenario: str) -> None:
    assert explore(scenario).violations
