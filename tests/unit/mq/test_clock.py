"""The clock by which a consumer knows that its lease may be over."""

from __future__ import annotations

import time

from conquiet.mq.clock import lease_clock


def test_the_certainty_of_a_lease_ends_while_the_machine_sleeps(monkeypatch):
    # As on a machine that was awake for 100 s and asleep for 4,900 s.
    clocks = {time.CLOCK_MONOTONIC: 100.0, time.CLOCK_BOOTTIME: 5_000.0}
    monkeypatch.setattr(time, "clock_gettime", clocks.__getitem__)

    assert lease_clock() == 5_000.0
