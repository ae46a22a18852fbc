"""RateLimiterContract: what every `RateLimiter` must do."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor

from conquiet.tasks.rates import Bucket, Rate, RateLimiter

#: Five in an hour: no test is slow enough for one more.
_RARE = Rate(5, 3_600_000)
_OFTEN = Rate(20, 1_000)


class RateLimiterContract(ABC):
    """Inherit from it in a class that pytest collects, and say how a limiter is made.

    Examples:
        >>> class TestMyRateLimiter(RateLimiterContract):
        ...     def make_rate_limiter(self):
        ...         return MyRateLimiter()
    """

    @abstractmethod
    def make_rate_limiter(self) -> RateLimiter:
        """A limiter that no other test has used."""

    def test_as_many_tasks_as_the_rate_says_begin_at_once(self) -> None:
        """The bucket is full at first."""
        limiter, bucket = self.make_rate_limiter(), Bucket("default", "task")

        assert [limiter.delay_ms(bucket, f"5:{number}-0", _RARE) for number in range(5)] == [0] * 5

    def test_tasks_that_must_wait_get_times_of_their_own(self) -> None:
        """As far apart as tokens come."""
        limiter, bucket = self.make_rate_limiter(), Bucket("default", "task")
        delays = [limiter.delay_ms(bucket, f"5:{number}-0", _RARE) for number in range(10)]

        waits = delays[5:]

        for number, wait_ms in enumerate(waits, start=1):
            assert abs(wait_ms - number * _RARE.interval_ms) < _RARE.interval_ms / 2, waits

    def test_a_task_that_comes_too_early_is_told_what_is_left(self) -> None:
        """And takes no second token."""
        limiter, bucket = self.make_rate_limiter(), Bucket("default", "task")
        *_, first = (limiter.delay_ms(bucket, f"5:{number}-0", _RARE) for number in range(6))

        again = [limiter.delay_ms(bucket, "5:5-0", _RARE) for _ in range(3)]

        assert all(0 < wait_ms <= first for wait_ms in again)
        assert limiter.delay_ms(bucket, "5:6-0", _RARE) > first

    def test_a_task_that_cannot_wait_for_so_long_takes_no_token(self) -> None:
        """It expires before its turn, and those behind it come no later for that."""
        limiter, bucket = self.make_rate_limiter(), Bucket("default", "task")
        for number in range(5):
            limiter.delay_ms(bucket, f"5:{number}-0", _RARE)

        refused = [limiter.delay_ms(bucket, f"5:{number}-0", _RARE, 1_000) for number in range(5, 9)]

        wait_ms = limiter.delay_ms(bucket, "5:9-0", _RARE)
        assert all(one >= wait_ms for one in refused)
        assert abs(wait_ms - _RARE.interval_ms) < _RARE.interval_ms / 2

    def test_a_task_that_has_waited_is_let_through(self) -> None:
        """At its own time, though others wait too."""
        limiter, bucket = self.make_rate_limiter(), Bucket("default", "task")
        waits = {f"5:{number}-0": limiter.delay_ms(bucket, f"5:{number}-0", _OFTEN) for number in range(60)}
        began = time.monotonic()

        for task, wait_ms in sorted(waits.items(), key=lambda pair: pair[1]):
            while wait_ms > 0:
                time.sleep(max(0.0, began + waits[task] / 1_000 - time.monotonic()))
                wait_ms = limiter.delay_ms(bucket, task, _OFTEN)
                waits[task] += wait_ms

    def test_buckets_do_not_know_each_other(self) -> None:
        """Of other queues, tasks and keys."""
        limiter = self.make_rate_limiter()
        buckets = [
            Bucket("default", "task"),
            Bucket("other", "task"),
            Bucket("default", "other"),
            Bucket("default", "task", "key"),
            Bucket("default", "task", "other key"),
        ]

        for bucket in buckets:
            assert [limiter.delay_ms(bucket, f"5:{number}-0", _RARE) for number in range(5)] == [0] * 5
            assert limiter.delay_ms(bucket, "5:5-0", _RARE) > 0

    def test_many_threads_together_begin_no_more_than_the_rate_says(self) -> None:
        """A worker asks from several threads."""
        limiter, bucket = self.make_rate_limiter(), Bucket("default", "task")

        with ThreadPoolExecutor(8) as threads:
            tasks = [f"5:{number}-0" for number in range(64)]
            delays = list(threads.map(lambda task: limiter.delay_ms(bucket, task, _RARE), tasks))

        assert delays.count(0) == 5
        assert len(set(delays)) == 60

    def test_a_rate_that_is_changed_is_kept_from_then_on(self) -> None:
        """What waits comes in proportion."""
        limiter, bucket = self.make_rate_limiter(), Bucket("default", "task")
        slow = Rate(5, 36_000_000)
        for number in range(7):
            limiter.delay_ms(bucket, f"5:{number}-0", slow)

        limiter.change(bucket, _RARE)

        wait_ms = limiter.delay_ms(bucket, "5:6-0", _RARE)
        assert abs(wait_ms - 2 * _RARE.interval_ms) < _RARE.interval_ms / 2
