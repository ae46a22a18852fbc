"""Admission: whether a task that was read may begin now."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from conquiet.logs import MessageLog
from conquiet.queue.connection import Client, as_text, run_command
from conquiet.tasks.codec import EnvelopeCodec
from conquiet.tasks.keys import QueueKeys
from conquiet.tasks.message import TaskMessage
from conquiet.tasks.metrics import METRICS
from conquiet.tasks.options import NO_RATE
from conquiet.tasks.rates import Bucket, Rate, RateLimiter
from conquiet.tasks.scripts import Read
from conquiet.tasks.scripts import control as scripts
from conquiet.tasks.settlement import TaskSettlement

_log = MessageLog(logging.getLogger(__name__))

_parse_rate = lru_cache(maxsize=1_000)(Rate.parse)


class Admission:
    """What control has changed, as one channel knows it; lives as long as its channel.

    All of it is kept in Redis: a counter that every read returns says that something has changed, and a
    broadcast only makes the channel look at once.
    """

    def __init__(self, client: Client, limiter: RateLimiter, codec: EnvelopeCodec) -> None:
        self._client = client
        self._limiter = limiter
        self._codec = codec
        self._must_look = False
        self._changes: dict[str, int] = {}
        self._paused: set[str] = set()
        #: Queues that may have revoked tasks.
        self._revoking: set[str] = set()
        self._revoked: set[str] = set()
        #: Rates that were changed, by queue and task; `None`: no limit.
        self._rates: dict[str, Mapping[str, Rate | None]] = {}

    def look_again(self) -> None:
        """Have the channel look before it begins another task; callable from other threads."""
        self._must_look = True

    def must_look(self) -> bool:
        """Whether `look_again` was called since; once."""
        if not self._must_look:
            return False
        self._must_look = False
        return True

    def noticed(self, keys: QueueKeys, reply: Read, reserved: Iterable[TaskMessage]) -> None:
        """Learn what a read has returned."""
        if reply.is_paused:
            self._paused.add(keys.prefix)
        else:
            self._paused.discard(keys.prefix)
        if reply.changes == self._changes.get(keys.prefix, 0):
            return
        self._rates[keys.prefix] = load_rates(self._client, keys)
        self._revoking.add(keys.prefix)
        self.examine(reserved)
        self._changes[keys.prefix] = reply.changes

    def examine(self, messages: Iterable[TaskMessage]) -> None:
        """Find out which of them are revoked."""
        for prefix in tuple(self._revoking):
            mine = [msg for msg in messages if msg.place.keys.prefix == prefix]
            if mine:
                ids = {msg.id for msg in mine} | {msg.canvas for msg in mine if msg.canvas is not None}
                are_any, found = scripts.revoked(self._client, mine[0].place.keys, tuple(ids))
                self._revoked |= found
                if not are_any:
                    self._revoking.discard(prefix)

    def is_revoked(self, msg: TaskMessage) -> bool:
        """Whether it, or all of its canvas, must not run."""
        return bool(self._revoked) and (msg.id in self._revoked or msg.canvas in self._revoked)

    def settled(self, keys: QueueKeys, settlements: Sequence[TaskSettlement]) -> None:
        """Forget which of those that have ended were revoked."""
        if not settlements or keys.prefix not in self._revoking:
            return
        task_ids = [one.entry_id for one in settlements if one.state is not None and one.state.is_final]
        if task_ids:
            run_command(self._client, "ZREM", keys.revoked, *task_ids, stream=keys.revoked, group=None)
            self._revoked.difference_update(task_ids)

    def delay_ms(self, msg: TaskMessage) -> int | None:
        """How long the task has to wait; `None`: it may begin now."""
        if msg.place.keys.prefix in self._paused:
            return 0
        if msg.task is None or self.is_revoked(msg):
            return None
        rate, left_ms = self._rate(msg), msg.left_ms()
        if rate is None or (left_ms is not None and left_ms <= 0):
            return None
        bucket = Bucket(msg.place.keys.queue, msg.task.name, self._rate_key(msg))
        place = f"{msg.place.priority}:{msg.place.entry_id}"
        delay_ms = self._limiter.delay_ms(bucket, place, rate, left_ms)
        if not delay_ms:
            return None
        METRICS.emit("conquiet_tasks_rate_limited_total", 1, bucket.task, bucket.queue)
        # What expires before its turn ends at its time, not later.
        return delay_ms if left_ms is None else min(delay_ms, left_ms)

    def _rate_key(self, msg: TaskMessage) -> str | None:
        assert msg.task is not None  # noqa: S101 -- for mypy: the caller has looked
        rate_key = msg.envelope.meta.get("rateKey", msg.task.options.rate_key)
        if rate_key is None:
            return None
        try:
            self._codec.load_args(msg.envelope)
            args = msg.envelope.args
            return str(args.get(rate_key) if isinstance(rate_key, str) else rate_key(args))
        except Exception as error:  # noqa: BLE001 -- user code: the task is limited without a key
            _log.warning("the rate_key of task %s failed, it is limited by its name: %r", msg.id, error)
            return None

    def _rate(self, msg: TaskMessage) -> Rate | None:
        assert msg.task is not None  # noqa: S101 -- for mypy: the caller has looked
        changed = self._rates.get(msg.place.keys.prefix)
        if changed and msg.envelope.name in changed:
            return changed[msg.envelope.name]
        text = msg.envelope.meta.get("rateLimit") or msg.task.options.rate_limit
        if not text or text == NO_RATE:
            return None
        try:
            return _parse_rate(text)
        except (ValueError, TypeError) as error:
            _log.warning("task %s is not limited: %s", msg.id, error)
            return None


def load_rates(client: Client, keys: QueueKeys) -> dict[str, Rate | None]:
    """The rates of a queue that were changed at run time."""
    reply = run_command(client, "HGETALL", keys.meta, stream=keys.prefix, group=None)
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    rates: dict[str, Rate | None] = {}
    for field, value in pairs:
        name, text = as_text(field), as_text(value)
        if name.startswith("rate:"):
            try:
                rates[name.removeprefix("rate:")] = None if text == "none" else Rate.parse(text)
            except ValueError as error:
                _log.warning("the rate of %r in %s is not used: %s", name, keys.meta, error)
    return rates
