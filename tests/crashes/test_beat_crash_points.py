"""Wherever a beat dies: each occurrence is enqueued once, on one server and as on a cluster."""

from __future__ import annotations

import pytest

from conquiet.testing.crash_points import Fault
from tests.crashes.beat_scenarios import BEAT_SCENARIOS, BEAT_WRONG_LOOPS
from tests.crashes.conftest import Explore


@pytest.mark.parametrize("fault", ["crash", "lost_answer"])
@pytest.mark.parametrize("scenario", sorted(BEAT_SCENARIOS))
def test_no_crash_point_misses_an_occurrence_or_enqueues_it_twice(
    explore: Explore, scenario: str, fault: Fault
) -> None:
    exploration = explore(scenario, fault)

    assert exploration.violations == []
    assert len(exploration.points) >= 8


@pytest.mark.parametrize("scenario", sorted(BEAT_WRONG_LOOPS))
def test_the_explorer_catches_what_misses_or_doubles(explore: Explore, scenario: str) -> None:
    assert explore(scenario).violations
