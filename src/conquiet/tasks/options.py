"""TaskOptions: how a task is delivered, tried again and kept; the defaults of every task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from conquiet.arguments import check_name, check_non_negative_int, check_positive_seconds
from conquiet.mq import RetryPolicy
from conquiet.tasks.keys import DEFAULT_MAX_RETRIES, DEFAULT_PRIORITY, PRIORITIES
from conquiet.tasks.names import name_of
from conquiet.tasks.rates import Rate, RateKey

#: A record of a task that has not ended is kept for this long after its last change.
UNFINISHED_TTL_MS = 30 * 86_400_000

_SECONDS = (
    "delay_s",
    "expires_s",
    "soft_time_limit_s",
    "hard_time_limit_s",
    "unique_for_s",
    "visibility_timeout_s",
    "result_ttl_s",
)

#: Options of a call that a worker must know, by their names in the envelope's meta.
_CARRIED = {
    "soft_time_limit_s": "softTimeLimitMs",
    "hard_time_limit_s": "hardTimeLimitMs",
    "result_ttl_s": "resultTtlMs",
}
_CARRIED_RETRY = {"backoff": "backoff", "base_delay_ms": "baseDelayMs", "max_delay_ms": "maxDelayMs"}
#: Exceptions, by the names of their classes: a worker must not import what a message names.
_CARRIED_ERRORS = {"retry_on": "retryOn", "never_on": "neverOn"}
#: Of a call that is not limited though its task is.
NO_RATE = "none"
_LONGEST_S = 100 * 366 * 86_400
#: Names in an envelope's meta that no caller may give.
_OF_THE_LIBRARY = frozenset(
    (
        *("schemaVersion", "canvas", "resultsOf", "storedArgs", "retryOf", "schedule"),
        *("expiresAt", "ignoreResult", "rateLimit", "rateKey", "retry", *_CARRIED.values()),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """Given to `@app.task(...)`, and for single calls to `with_options(...)`.

    Examples:
        >>> urgent = price.with_options(priority=9, expires_s=3_600)
        >>> urgent.enqueue(1, 1).result(timeout_s=60)
        1
    """

    #: The queue of the task; workers read the queues that they are given.
    queue: str = "default"
    #: 9 is first, 0 is last: a lower one is read when all higher ones are empty.
    priority: int = DEFAULT_PRIORITY
    #: How often it is tried again after its first attempt.
    max_retries: int = DEFAULT_MAX_RETRIES
    #: When, and after which exceptions; its `max_attempts` is not used.
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    #: Not run before this time has passed, or before `eta`.
    delay_s: float | None = None
    #: Not run before this moment, with a time zone; instead of `delay_s`.
    eta: datetime | None = None
    #: Not run after this time, counted from when it is enqueued.
    expires_s: float | None = None
    #: `SoftTimeLimitError` is raised inside of the task.
    soft_time_limit_s: float | None = None
    #: The process of the task is killed, and the attempt has failed; needs the process pool.
    hard_time_limit_s: float | None = None
    #: Such as "10/s", "100/m" or "5/h", of all workers of the queue together; see `Rate`.
    rate_limit: str | None = None
    #: The argument by whose value tasks are limited apart, or a function of the arguments.
    rate_key: RateKey | None = None
    #: For so long a second task with the same name and arguments is not enqueued: its caller gets the first.
    unique_for_s: float | None = None
    #: Strings that travel with the task, as trace contexts do.
    headers: Mapping[str, str] = field(default_factory=dict)
    #: JSON that travels with the task, for middleware.
    meta: Mapping[str, Any] = field(default_factory=dict)
    #: A task of a dead worker is taken over not before it was pending for so long.
    visibility_timeout_s: float | None = None
    #: How long state and result are kept after its end.
    result_ttl_s: float = 86_400.0
    #: Keep neither state nor result.
    ignore_result: bool = False

    def __post_init__(self) -> None:
        check_name("queue", self.queue)
        if "{" in self.queue or "}" in self.queue:
            raise ValueError(f"queue must not have braces, got {self.queue!r}")
        check_non_negative_int("max_retries", self.max_retries)
        if self.priority not in PRIORITIES or isinstance(self.priority, bool):
            raise ValueError(f"priority must be an int from 0 to 9, got {self.priority!r}")
        for name in _SECONDS:
            seconds = getattr(self, name)
            if seconds is not None:
                check_positive_seconds(name, seconds)
                if seconds > _LONGEST_S:
                    raise ValueError(f"{name} must be at most 100 years, got {seconds!r}")
        if self.eta is not None and self.eta.tzinfo is None:
            raise ValueError(f"eta must have a time zone, got {self.eta!r}")
        if self.eta is not None and self.delay_s is not None:
            raise ValueError("give either delay_s or eta, not both")
        if self.rate_limit is not None:
            Rate.parse(self.rate_limit)
        for name, value in self.headers.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise TypeError(f"headers must be strings, got {name!r}: {value!r:.100}")
        if own := _OF_THE_LIBRARY & self.meta.keys():
            # The meta of another task, passed on as `meta=ctx.meta`, has more than its user's.
            if "schemaVersion" not in own:
                raise ValueError(f"meta must not have {', '.join(sorted(own))}: conquiet writes that")
            users = {name: value for name, value in self.meta.items() if name not in own}
            object.__setattr__(self, "meta", users)

    def but(self, **changes: Any) -> Self:
        """These options with some changed; `headers` and `meta` are merged."""
        unknown = changes.keys() - {one.name for one in fields(self)}
        if unknown:
            raise TypeError(f"{', '.join(sorted(unknown))}: not an option of a task")
        for name in ("headers", "meta"):
            if name in changes:
                changes[name] = {**getattr(self, name), **changes[name]}
        return replace(self, **changes)

    def delay_ms(self, now: datetime) -> int:
        """How long it waits from now on."""
        if self.eta is not None:
            return max(0, round((self.eta.astimezone(UTC) - now).total_seconds() * 1000))
        return round((self.delay_s or 0) * 1000)


def milliseconds(seconds: float | None) -> int:
    """As an int, for the wire; 0 for `None`."""
    return 0 if seconds is None else max(1, round(seconds * 1000))


def carried_options(options: TaskOptions, declared: TaskOptions, now: datetime) -> dict[str, Any]:
    """The meta of an envelope: the user's own, and what a worker cannot know from the declaration."""
    meta = dict(options.meta)
    if options.expires_s is not None:
        moment = now + timedelta(seconds=options.expires_s)
        meta["expiresAt"] = moment.isoformat(timespec="milliseconds")
    if options.ignore_result:
        meta["ignoreResult"] = True
    if options is declared:
        return meta
    for name, wire in _CARRIED.items():
        if getattr(options, name) != getattr(declared, name):
            meta[wire] = milliseconds(getattr(options, name))
    if options.rate_limit != declared.rate_limit:
        meta["rateLimit"] = options.rate_limit or NO_RATE
    if options.rate_key != declared.rate_key:
        if callable(options.rate_key):
            raise ValueError("rate_key of a call must be the name of an argument: it cannot carry a function")
        meta["rateKey"] = options.rate_key
    if options.retry is not declared.retry and options.retry != declared.retry:
        meta["retry"] = _carried_retry(options.retry, declared.retry)
    return meta


def _carried_retry(retry: RetryPolicy, declared: RetryPolicy) -> dict[str, Any]:
    carried: dict[str, Any] = {wire: getattr(retry, name) for name, wire in _CARRIED_RETRY.items()}
    for name, wire in _CARRIED_ERRORS.items():
        if getattr(retry, name) != getattr(declared, name):
            carried[wire] = [name_of(kind) for kind in getattr(retry, name)]
    return carried


def is_retried(error: Exception, policy: RetryPolicy, meta: Mapping[str, Any]) -> bool:
    """Whether a task is tried again after this exception: by its declaration, or by what its call carries."""
    carried = meta.get("retry")
    if not isinstance(carried, dict) or carried.keys().isdisjoint(_CARRIED_ERRORS.values()):
        return policy.is_retried(error)
    names = [name_of(kind) for kind in type(error).__mro__]

    def has(wire: str, kinds: tuple[type[Exception], ...]) -> bool:
        listed = carried.get(wire)
        return any(one in listed for one in names) if isinstance(listed, list) else isinstance(error, kinds)

    return has("retryOn", policy.retry_on) and not has("neverOn", policy.never_on)


def check_meta(meta: Mapping[str, Any], declared: TaskOptions) -> None:
    """Refuse what a worker could not use, outside of the task's function, where it would end the worker.

    Raises:
        ValueError: with the reason.
    """
    try:
        if "expiresAt" in meta and datetime.fromisoformat(meta["expiresAt"]).tzinfo is None:
            raise ValueError("it has no time zone")  # noqa: TRY301 -- reported as those of the calls
        options_of_call(declared, meta)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"its meta cannot be used: {error}") from error


def options_of_call(declared: TaskOptions, meta: Mapping[str, Any]) -> TaskOptions:
    """The options of a task that was read: as declared, changed by what its call carries."""
    if len(meta) == 1 and "schemaVersion" in meta:
        # Of most tasks.
        return declared
    changes: dict[str, Any] = {}
    for name, wire in _CARRIED.items():
        value = meta.get(wire)
        if isinstance(value, int) and value > 0:
            changes[name] = value / 1000
        elif value == 0:
            changes[name] = None
    if isinstance(retry := meta.get("retry"), dict):
        known = {name: retry[wire] for name, wire in _CARRIED_RETRY.items() if wire in retry}
        changes["retry"] = replace(declared.retry, **known)
    return replace(declared, **changes) if changes else declared
