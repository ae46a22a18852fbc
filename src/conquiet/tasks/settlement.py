"""How a task is settled: decided without Redis; the record that is written with it."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from conquiet.consume.dead_letter import Cause, GivenUp, malformed_content, short_text, writable_content
from conquiet.consume.outcome import Ack, DeadLetter, Outcome, Retry, Settlement, SettlementKind, Skipped
from conquiet.errors import MalformedEntry
from conquiet.queue.lua import Argument
from conquiet.tasks import clock
from conquiet.tasks.canvas.follow_ups import follow_up_of
from conquiet.tasks.errors import PayloadStoreError, TaskRevokedError
from conquiet.tasks.keys import GROUP, QueueKeys
from conquiet.tasks.message import Place, TaskMessage
from conquiet.tasks.options import (
    UNFINISHED_TTL_MS,
    TaskOptions,
    is_retried,
    milliseconds,
    options_of_call,
)
from conquiet.tasks.record import TaskState, step_name
from conquiet.tasks.scripts import Change, Taken

#: A task that only a later version can read is left to other workers for this time.
_LATER_VERSION_MS = 5_000
#: A task whose arguments or result the payload store cannot read or write is tried again after this time, and
#: later, the longer it lasts.
_STORE_UNAVAILABLE_MS = (5_000, 60_000)
#: The record of a task of a canvas is kept for this time at least.
_CANVAS_KEPT_MS = 3_600_000
#: Of the names of tasks in one sentence.
_MOST_NAMES = 10


@dataclass(slots=True, kw_only=True)
class TaskSettlement(Settlement):
    """What is done with one task, and what its record says then."""

    place: Place
    #: Whether the task has a record.
    has_record: bool = False
    state: TaskState | None = None
    name: str = ""
    #: What is to be done for its canvas, as JSON.
    follow_up: str = ""
    #: The key of its arguments in the payload store, deleted after the ack; or empty.
    stored_key: str = ""
    record_ttl_ms: int = 0
    record: list[Argument] = field(default_factory=list, compare=False)

    def change(self) -> Change:
        """As the script takes it."""
        return Change(
            self.kind,
            self.place.priority,
            self.place.entry_id,
            self.delivery_count,
            self.first,
            str(self.second),
            self.entry_id,
            self.follow_up,
            self.record_ttl_ms,
            self.record,
        )


class TaskRules:
    """Turns what a task returned or raised into its settlement; pure but for the clock."""

    def __init__(self, consumer: str, known: Collection[str]) -> None:
        self._consumer = consumer
        #: The names of the tasks of this worker.
        self._known = known

    def begin(self, msg: TaskMessage) -> TaskSettlement:
        """What waited is about to run: its delivery is counted now."""
        settlement = _settlement("begin", msg, delivery_count=msg.delivery_count - 1)
        msg.begins()
        if settlement.has_record:
            settlement.record_ttl_ms = UNFINISHED_TTL_MS
            settlement.record = [part for pair in self.running_record(msg).items() for part in pair]
        return settlement

    def hand_back(self, msg: TaskMessage, delay_ms: int = 0) -> TaskSettlement:
        """Not begun, and no attempt: free for other workers, now or later."""
        counted = msg.delivery_count if msg.is_counted else msg.delivery_count - 1
        return _settlement("hand_back", msg, delay_ms, str(msg.delivery_count - 1), delivery_count=counted)

    def unread(self, keys: QueueKeys, taken: Taken) -> TaskSettlement:
        """As if it had not been read: free now, and the delivery is not counted."""
        place = Place(keys=keys, priority=taken.priority, entry_id=taken.entry_id)
        before = str(taken.delivery_count - 1)
        return TaskSettlement("hand_back", taken.entry_id, taken.delivery_count, 0, before, place=place)

    def without_function(self, msg: TaskMessage, *, is_revoked: bool) -> TaskSettlement | None:
        """The settlement of a task that must not run; `None` for all others."""
        if is_revoked:
            return self._ended(msg, TaskState.REVOKED, "it was revoked before it began")
        if msg.has_expired():
            return self._ended(msg, TaskState.EXPIRED, "it was not begun before it expired")
        if msg.task is None:
            return self._dead_letter(msg, _unknown_task(msg.envelope.name, self._known))
        deliveries = msg.delivery_count - 1
        # The worker that read it first may have died before it began; from the second time on begins count.
        if deliveries > msg.envelope.max_retries + (deliveries == 1):
            text = f"delivered {deliveries} times and never finished: its worker died each time"
            return self._dead_letter(msg, Cause(error_type="Poison", message=text))
        return None

    def for_result(self, msg: TaskMessage, result: Outcome | Exception) -> TaskSettlement:
        """The settlement of what the function returned or raised."""
        match result:
            case Ack():
                return self._succeeded(msg)
            case Skipped():
                settlement = self._succeeded(msg)
                settlement.outcome = "skipped"
                return settlement
            case DeadLetter(reason):
                return self._dead_letter(msg, Cause(error_type="DeadLetter", message=reason))
            case Retry(delay_ms, reason):
                return self._again(msg, Cause(error_type="Retry", message=reason), delay_ms)
        if isinstance(result, TaskRevokedError) and result.task_id == msg.id:
            return self._ended(msg, TaskState.REVOKED, "it was revoked while it ran")
        if isinstance(result, PayloadStoreError):
            return self._wait_for_store(msg, result)
        cause = Cause.of(result)
        if is_retried(result, self.options(msg).retry, msg.envelope.meta):
            settlement = self._again(msg, cause, None)
        else:
            settlement = self._dead_letter(msg, cause)
        # The traceback of the log line has it.
        settlement.error, settlement.reason = result, ""
        return settlement

    def for_malformed(self, entry: MalformedEntry) -> TaskSettlement:
        """The dead letter of an entry that is no task, with its bytes; a later version's is handed back."""
        place = getattr(entry, "place", None)
        assert isinstance(place, Place)  # noqa: S101 -- for mypy: the channel makes no others
        if entry.hand_back_count is not None:
            return TaskSettlement(
                "hand_back",
                entry.id,
                entry.delivery_count,
                _LATER_VERSION_MS,
                str(entry.hand_back_count),
                outcome="handed_back",
                place=place,
            )
        cause, content = malformed_content(entry)
        letter = _given_up(place, entry.delivery_count, entry.id, self._consumer).letter(cause, content)
        return TaskSettlement(
            "dead_letter",
            entry.id,
            entry.delivery_count,
            letter,
            outcome="dead_lettered",
            reason=f"{cause.error_type}: {cause.message}",
            place=place,
        )

    def running_record(self, msg: TaskMessage) -> dict[str, Argument]:
        """What the record says of a task that runs."""
        attempt = msg.delivery_count - 1
        return {
            "state": "running",
            "worker": self._consumer,
            "attempt": attempt,
            step_name("running", msg.started_ms): _facts_of(self._consumer, attempt),
        }

    def options(self, msg: TaskMessage) -> TaskOptions:
        """Of the task, changed by its call."""
        declared = TaskOptions() if msg.task is None else msg.task.options
        return options_of_call(declared, msg.envelope.meta)

    def _succeeded(self, msg: TaskMessage) -> TaskSettlement:
        settlement = _settlement("ack", msg, outcome="handled", state=TaskState.SUCCEEDED)
        settlement.stored_key = msg.stored_key
        if settlement.has_record:
            settlement.record_ttl_ms = self._kept_ms(msg)
            self._write(settlement, msg, ("succeeded",), result=msg.result or b"null")
        settlement.follow_up = _follow_up(msg, TaskState.SUCCEEDED)
        return settlement

    def _ended(self, msg: TaskMessage, state: TaskState, reason: str) -> TaskSettlement:
        settlement = _settlement("ack", msg, outcome="skipped", state=state, reason=reason)
        settlement.stored_key = msg.stored_key
        settlement.record_ttl_ms = self._kept_ms(msg)
        self._write(settlement, msg, (state.value,), error=reason)
        settlement.follow_up = _follow_up(msg, state, reason)
        return settlement

    def _wait_for_store(self, msg: TaskMessage, error: PayloadStoreError) -> TaskSettlement:
        """No attempt, however long it lasts: the task is not at fault."""
        shortest, longest = _STORE_UNAVAILABLE_MS
        settlement = self.hand_back(msg, min(longest, max(shortest, round(msg.waited_s() * 1000 / 10))))
        settlement.outcome, settlement.error = "handed_back", error
        settlement.record_ttl_ms = UNFINISHED_TTL_MS
        self._write(settlement, msg, ("queued",), error=short_text(f"{type(error).__name__}: {error}"))
        return settlement

    def _again(self, msg: TaskMessage, cause: Cause, delay_ms: int | None) -> TaskSettlement:
        if msg.delivery_count > msg.envelope.max_retries:
            return self._dead_letter(msg, cause)
        if delay_ms is None:
            policy = self.options(msg).retry
            # Jitter grows with the attempts: nothing is kept of the last delay.
            delay_ms = policy.delay_ms(msg.delivery_count, policy.base_delay_ms * msg.delivery_count)
        settlement = _settlement("retry", msg, delay_ms, outcome="retried", state=TaskState.RETRIED)
        settlement.record_ttl_ms = UNFINISHED_TTL_MS + delay_ms
        self._write(settlement, msg, ("retried",), **_error_of(cause))
        return settlement

    def _dead_letter(self, msg: TaskMessage, cause: Cause) -> TaskSettlement:
        content = writable_content(
            lambda: {"headers": dict(msg.headers), "envelope": json.loads(msg.data)}, msg.data
        )
        letter = _given_up(msg.place, msg.delivery_count, msg.id, self._consumer).letter(cause, content)
        reason = f"{cause.error_type}: {cause.message}"
        settlement = _settlement(
            "dead_letter", msg, letter, outcome="dead_lettered", reason=reason, state=TaskState.DEAD_LETTERED
        )
        settlement.record_ttl_ms = self._kept_ms(msg)
        self._write(settlement, msg, ("failed", "dead_lettered"), **_error_of(cause))
        settlement.follow_up = _follow_up(msg, TaskState.DEAD_LETTERED, short_text(reason))
        return settlement

    def _kept_ms(self, msg: TaskMessage) -> int:
        kept_ms = milliseconds(self.options(msg).result_ttl_s)
        # By its record a worker that does what a dead one has left to follow knows that it was enqueued.
        return kept_ms if msg.canvas is None else max(kept_ms, _CANVAS_KEPT_MS)

    def _write(
        self, settlement: TaskSettlement, msg: TaskMessage, states: tuple[str, ...], **fields: Argument
    ) -> None:
        if not settlement.has_record:
            return
        attempt, now = msg.delivery_count - 1, clock.now_ms()
        # Made once for many tasks, as that is half of what a settlement takes.
        plain = facts = _facts_of(self._consumer, attempt)
        if "error" in fields:
            facts = json.dumps(json.loads(plain) | {"error": fields["error"]})
        record: list[Argument] = ["state", states[-1], "attempt", attempt, "worker", self._consumer]
        if msg.started_ms:
            record += (step_name("running", msg.started_ms), plain)
        for state in states:
            record += (step_name(state, now), facts)
        for name, value in fields.items():
            record += (name, value)
        settlement.record = record


def _settlement(
    kind: SettlementKind,
    msg: TaskMessage,
    first: str | int = "",
    second: str = "",
    *,
    delivery_count: int | None = None,
    **facts: Any,
) -> TaskSettlement:
    return TaskSettlement(
        kind,
        msg.id,
        msg.delivery_count if delivery_count is None else delivery_count,
        first,
        second,
        place=msg.place,
        has_record=msg.has_record,
        name=msg.envelope.name,
        **facts,
    )


@lru_cache(maxsize=1_000)
def _facts_of(consumer: str, attempt: int) -> str:
    return json.dumps({"worker": consumer, "attempt": attempt})


def _given_up(place: Place, attempts: int, task_id: str, consumer: str) -> GivenUp:
    return GivenUp(
        topic=place.keys.prefix,
        group=GROUP,
        partition=place.priority,
        original_id=task_id,
        attempts=attempts,
        consumer=consumer,
        now_ms=clock.now_ms(),
    )


def _follow_up(msg: TaskMessage, state: TaskState, error: str = "") -> str:
    return follow_up_of(msg.envelope.meta, state=state, result=msg.result, error=error)


def _error_of(cause: Cause) -> dict[str, Argument]:
    return {"error": short_text(f"{cause.error_type}: {cause.message}"), "traceback": cause.traceback}


def _unknown_task(name: str, known: Collection[str]) -> Cause:
    names = sorted(one for one in known if not one.startswith("conquiet."))
    shown = ", ".join(names[:_MOST_NAMES]) or "none"
    if len(names) > _MOST_NAMES:
        shown += f" and {len(names) - _MOST_NAMES:,} more"
    text = (
        f"no task of this worker is named {name!r}; it knows {shown}. "
        "A task declared in __main__ has another name, that of the file that is run: "
        "run a module of a package as `python -m package.module`"
    )
    return Cause(error_type="UnknownTask", message=text)
