"""Rates: how many tasks may begin in a time, in all workers together."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

from conquiet.queue.connection import Client
from conquiet.tasks.keys import QueueKeys
from conquiet.tasks.scripts import control as scripts

#: The name of an argument, or a function of the arguments.
RateKey = str | Callable[[Mapping[str, Any]], str]

_RATE = re.compile(r"(\d{1,9})/([smh])")
_PERIODS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000}
#: A longer key of a bucket is replaced by its digest.
_MAX_KEY = 100


@dataclass(frozen=True, slots=True)
class Rate:
    """A bucket of `count` tokens that is filled again, evenly, in `period_ms`; a task that begins takes one.

    After a pause up to `count` tasks begin at once, and in a time of `t` ms no more than
    `count * (1 + t / period_ms)`. How even they begin depends on the load of the workers: it is approximate.

    Examples:
        >>> Rate.parse("100/m").interval_ms
        600.0
    """

    count: int
    period_ms: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """The rate of a text such as "10/s", "100/m" or "5/h".

        Raises:
            ValueError: it is none.
        """
        match = _RATE.fullmatch(text) if isinstance(text, str) else None
        if match is None or not int(match[1]):
            raise ValueError(f'a rate is written as "10/s", "100/m" or "5/h", got {text!r}')
        return cls(int(match[1]), _PERIODS_MS[match[2]])

    @property
    def interval_ms(self) -> float:
        """Between two tokens."""
        return self.period_ms / self.count


@dataclass(frozen=True, slots=True)
class Bucket:
    """Whose tokens a task takes: those of its name in its queue, or of one key among them.

    Examples:
        >>> Bucket("mails", "shop.mail", key="ann").queue
        'mails'
    """

    queue: str
    task: str
    key: str | None = None

    @property
    def name(self) -> str:
        """The same for every worker."""
        if self.key is None:
            return self.task
        long = len(self.key) > _MAX_KEY
        return f"{self.task}:{hashlib.sha256(self.key.encode()).hexdigest()[:32] if long else self.key}"


class RateLimiter(Protocol):
    """Says when a task may begin; called by the threads of all workers.

    `conquiet.testing.RateLimiterContract` tests one.

    Examples:
        >>> class Unlimited:
        ...     def delay_ms(self, bucket, task, rate, within_ms=None):
        ...         return 0
        ...
        ...     def change(self, bucket, rate):
        ...         print("nothing waits")
        >>> shop = TaskApp(server.url, namespace="unlimited")
        >>> shop.rate_limiter = Unlimited()  # before a worker starts
    """

    def delay_ms(self, bucket: Bucket, task: str, rate: Rate, within_ms: int | None = None) -> int:
        """Take a token for the task, an opaque id: 0 if it may begin now, else the time to wait.

        One that would have to wait for `within_ms` or longer, as it expires before, takes no token.

        A task that has to wait is asked for again after that time, by any worker, and must then be let
        through; tasks that wait for tokens of one bucket have times of their own, as far apart as the
        tokens come. One that is asked for too early gets the time that is left, and takes no second token.
        """

    def change(self, bucket: Bucket, rate: Rate | None) -> None:
        """The rate of the bucket has changed: what waits should come sooner or later; `None`: now."""


class RedisRateLimiter:
    """Token buckets in Redis, each task one script; the default."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    def delay_ms(self, bucket: Bucket, task: str, rate: Rate, within_ms: int | None = None) -> int:
        """As `RateLimiter.delay_ms`."""
        keys = QueueKeys(self._namespace, bucket.queue)
        tokens = scripts.Tokens(rate.count, rate.period_ms, within_ms)
        return scripts.take_rate(self._client, keys, bucket.name, task, tokens)

    def change(self, bucket: Bucket, rate: Rate | None) -> None:
        """As `RateLimiter.change`."""
        keys = QueueKeys(self._namespace, bucket.queue)
        tokens = scripts.Tokens(1, 0) if rate is None else scripts.Tokens(rate.count, rate.period_ms)
        scripts.take_rate(self._client, keys, bucket.name, "", tokens)
