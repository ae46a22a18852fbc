"""The rate limiter in Redis, by the suite that users run on theirs."""

from __future__ import annotations

import pytest

from conquiet.tasks import TaskApp
from conquiet.tasks.rates import RateLimiter
from conquiet.testing import RateLimiterContract


class TestRedisRateLimiter(RateLimiterContract):
    """In every kind of server."""

    @pytest.fixture(autouse=True)
    def _use(self, app: TaskApp) -> None:
        self._app = app

    def make_rate_limiter(self) -> RateLimiter:
        """As an app has it."""
        return self._app.rate_limiter
