"""Rates of a backlog: the difference of two looks."""

from __future__ import annotations

from conquiet.operations import Rates, Sample, rates_between


def sample(at_s=0, **figures):
    values = {"length": 0, "added": 0, "lag": 0, "pending": 0} | figures
    return Sample(topic="orders", group="billing", at_ms=at_s * 1000, **values)


def test_what_came_and_what_was_handled_between_two_looks():
    rates = rates_between(sample(0, added=100, lag=50, pending=2), sample(10, added=200, lag=30, pending=2))

    assert (rates.enqueued_per_s, rates.handled_per_s) == (10.0, 12.0)
    assert rates.seconds_to_drain == 16.0


def test_a_backlog_that_grows_is_never_drained():
    rates = rates_between(sample(0, added=0, lag=0), sample(1, added=100, lag=60))

    assert (rates.handled_per_s, rates.seconds_to_drain) == (40.0, None)


def test_the_first_look_has_no_rates():
    assert rates_between(None, sample()) == Rates()
    assert rates_between(sample(1), sample(1)) == Rates()


def test_where_the_server_does_not_count_the_length_tells_unless_it_was_trimmed():
    grown = rates_between(sample(0, added=None, length=10), sample(1, added=None, length=15, lag=5))
    trimmed = rates_between(sample(0, added=None, length=10), sample(1, added=None, length=3))

    assert (grown.enqueued_per_s, grown.handled_per_s) == (5.0, 0.0)
    assert trimmed == Rates()


def test_an_unknown_lag_gives_no_rate_of_handling():
    rates = rates_between(sample(0, added=1, lag=None), sample(1, added=3, lag=None))

    assert rates == Rates(enqueued_per_s=2.0)


def test_what_is_taken_back_is_not_negative_work():
    assert rates_between(sample(0, added=5, lag=0), sample(1, added=5, lag=5)).handled_per_s == 0.0
