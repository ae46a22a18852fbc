"""RetryPolicy: whether and when, without Redis and without a clock."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conquiet.mq import Message, RetryPolicy

policies = st.builds(
    lambda backoff, base, span, seed: RetryPolicy(
        backoff=backoff, base_delay_ms=base, max_delay_ms=base + span, random=random.Random(seed)
    ),
    st.sampled_from(["fixed", "exponential", "jitter"]),
    st.integers(0, 10_000),
    st.integers(0, 1_000_000),
    st.integers(),
)


@given(policy=policies, attempt=st.integers(1, 10_000), last=st.integers(0, 10**9))
def test_a_delay_lies_between_the_base_and_the_cap(policy, attempt, last):
    assert policy.base_delay_ms <= policy.delay_ms(attempt, last) <= policy.max_delay_ms


@given(attempt=st.integers(1, 1_000))
def test_a_fixed_delay_is_always_the_same(attempt):
    assert RetryPolicy(backoff="fixed", base_delay_ms=70).delay_ms(attempt, 500) == 70


def test_an_exponential_delay_doubles_up_to_the_cap():
    policy = RetryPolicy(backoff="exponential", base_delay_ms=100, max_delay_ms=1_500)

    assert [policy.delay_ms(attempt) for attempt in range(1, 7)] == [100, 200, 400, 800, 1_500, 1_500]


@given(last=st.integers(0, 20_000), seed=st.integers())
def test_jitter_lies_between_the_base_and_three_times_the_last_delay(last, seed):
    policy = RetryPolicy(base_delay_ms=100, max_delay_ms=10_000, random=random.Random(seed))

    assert 100 <= policy.delay_ms(2, last) <= min(10_000, 3 * max(100, last))


def test_messages_that_failed_together_do_not_come_back_together():
    policy = RetryPolicy(base_delay_ms=1_000, random=random.Random(1))

    first_delays = {policy.delay_ms(1) for _ in range(50)}

    assert len(first_delays) > 30
    assert max(first_delays) > 2_000


def test_the_attempt_with_the_highest_number_is_the_last():
    policy = RetryPolicy(max_attempts=3)

    assert [policy.is_exhausted(attempt) for attempt in (1, 2, 3, 4)] == [False, False, True, True]


def test_only_the_given_exceptions_are_retried_and_some_never():
    policy = RetryPolicy(retry_on=(OSError, LookupError), never_on=(KeyError,))

    assert policy.is_retried(ConnectionError())
    assert policy.is_retried(IndexError())
    assert not policy.is_retried(KeyError())
    assert not policy.is_retried(ValueError())


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0},
        {"backoff": "linear"},
        {"base_delay_ms": -1},
        {"base_delay_ms": 10, "max_delay_ms": 5},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RetryPolicy(**wrong)


@pytest.mark.parametrize("name", ["max_attempts", "base_delay_ms", "max_delay_ms"])
@pytest.mark.parametrize("value", ["5", True, None, 2.0, float("nan"), float("inf"), -1, [3]])
def test_a_number_of_the_wrong_kind_is_refused(name, value):
    with pytest.raises((TypeError, ValueError), match=f"{name} must be"):
        RetryPolicy(**{name: value})


@pytest.mark.parametrize("value", [1, "seed", None])
def test_a_random_that_is_no_generator_is_refused(value):
    with pytest.raises(TypeError, match=r"random must be a random\.Random"):
        RetryPolicy(random=value)


@pytest.mark.parametrize("name", ["retry_on", "never_on"])
@pytest.mark.parametrize("value", [ValueError, [ValueError], ("ValueError",), (ValueError(),), (int,), None])
def test_exceptions_of_the_wrong_kind_are_refused(name, value):
    with pytest.raises(TypeError, match=f"{name} must be a tuple of exception classes"):
        RetryPolicy(**{name: value})


def test_a_message_cannot_ask_for_more_than_a_thousand_retries():
    policy = RetryPolicy(max_attempts=3)

    assert not policy.is_exhausted(1_000, 10**9)
    assert policy.is_exhausted(1_001, 10**9)
    with pytest.raises(ValueError, match="max_retries must be at most 1000"):
        Message(payload={}, max_retries=1_001)
    assert Message(payload={}, max_retries=1_000).max_retries == 1_000
