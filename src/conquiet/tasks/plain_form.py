"""PlainForm: what all calls of a task have in common that run as soon as they can, as nearly all do."""

from __future__ import annotations

from typing import NamedTuple, Self

from conquiet.tasks import clock
from conquiet.tasks.envelope import EnvelopeFrame, TaskEnvelope
from conquiet.tasks.options import UNFINISHED_TTL_MS, TaskOptions, carried_options, milliseconds


class PlainForm(NamedTuple):
    """One task with the same options; made once, so that a call costs half."""

    name: str
    queue: str
    priority: int
    record_ttl_ms: int
    frame: EnvelopeFrame

    @classmethod
    def of(cls, name: str, options: TaskOptions, declared: TaskOptions) -> Self | None:
        """`None` if each call differs, or depends on what else is there."""
        timed = (options.delay_s, options.eta, options.expires_s, options.unique_for_s)
        # Headers and meta are mappings, which their owner may change.
        if any(one is not None for one in timed) or options.headers or options.meta:
            return None
        envelope = TaskEnvelope(
            name=name,
            args={},
            queue=options.queue,
            priority=options.priority,
            max_retries=options.max_retries,
            visibility_timeout_ms=milliseconds(options.visibility_timeout_s) or None,
            meta=carried_options(options, declared, clock.now()),
        )
        ttl_ms = 0 if options.ignore_result else UNFINISHED_TTL_MS
        return cls(name, options.queue, options.priority, ttl_ms, envelope.frame())
