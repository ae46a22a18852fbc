"""Workers, servers and the database fail at random; every effect happens once, in the order of its key."""

from __future__ import annotations

import os
import random

import pytest

from tests.chaos.plan import Plan
from tests.chaos.run import run_chaos
from tests.chaos.trouble import KINDS

_SECONDS = float(os.environ.get("CONQUIET_CHAOS_SECONDS", "30"))


# It ends by itself when nothing goes on any more.
@pytest.mark.timeout(0)
def test_every_effect_happens_once_and_in_order_while_workers_servers_and_the_database_fail(
    request: pytest.FixtureRequest,
):
    plan = Plan.lasting(
        _SECONDS, seed=int(os.environ.get("CONQUIET_CHAOS_SEED", random.randrange(1_000_000)))
    )

    figures = run_chaos(plan)

    request.node.user_properties.append(("chaos", str(figures)))
    assert figures.violations == [], str(figures)
    assert figures.unfinished == [], str(figures)
    assert figures.sent == plan.messages
    assert figures.effects - figures.lost_effects == figures.sent - figures.lost_for_good
    assert all(figures.trouble[kind] > 0 for kind in KINDS), str(figures)
