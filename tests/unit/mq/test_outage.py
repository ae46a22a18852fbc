"""An outage lasts from the first failure to the next success, and is waited out in bounded steps."""

from __future__ import annotations

import pytest

from conquiet.consume.outage import Outage


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_waits_double_up_to_a_bound(clock):
    outage = Outage(600, clock=clock)
    waits = []

    for _ in range(12):
        outage.failed()
        began = clock.now
        while not outage.is_time_to_try():
            clock.now += 0.01
        waits.append(round(clock.now - began, 1))

    assert waits == sorted(waits)
    assert waits[0] <= 0.1
    assert waits[-1] == pytest.approx(5.0, abs=0.1)


def test_it_is_too_long_only_after_its_limit_without_a_success(clock):
    outage = Outage(10, clock=clock)

    assert not outage.failed()
    clock.now += 9
    assert not outage.failed()
    outage.ended()
    clock.now += 9
    assert not outage.failed()
    clock.now += 11
    assert outage.failed()


def test_few_failures_are_no_outage_however_far_apart(clock):
    outage = Outage(10, min_failures=3, clock=clock)
    told = []

    for _ in range(3):
        told.append(outage.failed())
        clock.now += 3_600

    assert told == [False, False, True]


def test_without_a_failure_it_is_always_time_to_try(clock):
    outage = Outage(10, clock=clock)

    assert outage.is_time_to_try()
    assert not outage.is_on
