"""The explorer over the task layer: each task ends once, with its effect and its result, whatever dies."""

from __future__ import annotations

import json
import re
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import select

from conquiet.errors import ConquietError
from conquiet.tasks import TaskState
from conquiet.tasks.canvas import follow_ups
from conquiet.tasks.worker.slot import RunningSlot, RunningTask
from conquiet.testing.crash_points import CRASHED, FAILED, CrashPoints
from tests.crashes.explorer import Explorer
from tests.crashes.site import Address
from tests.crashes.task_site import CONSUMER, QUEUES, CountedPayloads, TaskSite, effects
from tests.eventually import HANG_S, eventually

_MAX_ROUNDS = 40
_LONGEST_WAIT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScenario:
    """Something to die in: `prepare` runs before any point is counted, `run` dies at each point in turn."""

    prepare: Callable[[TaskSite], None]
    run: Callable[[TaskSite], None]
    #: What an application does after a crash before anything is consumed, such as enqueueing once more.
    recover: Callable[[TaskSite], None] = lambda site: None
    #: How often each effect is there in the end.
    effects: Counter[str]
    #: How many tasks end in each state.
    states: Counter[str]
    #: Both, as they may be instead.
    or_else: tuple[Counter[str], Counter[str]] | None = None
    #: Whether it runs in a child of a process pool, whose parent settles what it left, and how.
    is_child: bool = False
    settle: Callable[[TaskSite, RunningTask | None], None] = TaskSite.settle_as_parent
    #: Whether its process is changed by it, so that each point needs one of its own.
    needs_process: bool = False
    has_inbox: bool = True
    has_outbox: bool = False
    is_async: bool = False
    max_points: int = 300
    timeout_s: int = int(HANG_S)


@dataclass(slots=True)
class TaskSnapshot:
    """Every place that a task can be in, by its id."""

    #: In a stream, in the delayed set, among the dead letters.
    queued: Counter[str] = field(default_factory=Counter)
    delayed: set[str] = field(default_factory=set)
    dead: Counter[str] = field(default_factory=Counter)
    #: Marked as revoked: whatever worker reads it drops it.
    marked: set[str] = field(default_factory=set)
    states: dict[str, str] = field(default_factory=dict)
    effects: Counter[str] = field(default_factory=Counter)
    follow_ups: int = 0
    #: Keys in the payload store, and those that a task, a dead letter or a record refers to.
    stored: set[str] = field(default_factory=set)
    needed: set[str] = field(default_factory=set)


def look(site: TaskSite) -> TaskSnapshot:
    """Take a snapshot with plain commands, none of them conquiet's own."""
    seen = TaskSnapshot()
    client: Any = site.app.client
    records = list(client.scan_iter(match=f"{site.app.namespace}:*:task:*", count=10_000))
    # In one round trip: half of an exploration's time were its looks.
    pipeline = client.pipeline(transaction=False)
    all_keys = [site.app.keys(queue) for queue in QUEUES]
    for keys in all_keys:
        for stream in (*keys.streams, keys.dead_letters):
            pipeline.xrange(stream)
        pipeline.hgetall(keys.delayed_items).hgetall(keys.follow_ups).zrange(keys.revoked, 0, -1)
    for record in records:
        pipeline.hmget(record, "state", "result")
    replies = iter(pipeline.execute())
    texts: list[bytes] = []
    for keys in all_keys:
        for _ in keys.streams:
            queued = [fields[b"data"] for _, fields in next(replies)]
            seen.queued.update(json.loads(data)["id"] for data in queued)
            texts += queued
        letters = [fields[b"data"] for _, fields in next(replies)]
        seen.dead.update(json.loads(data)["originalMessageId"] for data in letters)
        delayed, follow_ups = next(replies), next(replies)
        seen.delayed |= {item.decode() for item in delayed}
        seen.follow_ups += len(follow_ups)
        seen.marked |= {task_id.decode() for task_id in next(replies)}
        texts += [*letters, *delayed.values(), *follow_ups.values()]
    for record, (state, result) in zip(records, replies, strict=True):
        seen.states[record.decode().partition(":task:")[2]] = state.decode()
        texts.append(result or b"")
    seen.needed = {key.decode() for text in texts for key in re.findall(rb'"key": ?"([0-9a-f]{32})"', text)}
    assert isinstance(site.app.payload_store, CountedPayloads)
    seen.stored = site.app.payload_store.names()
    with site.engine.connect() as connection:
        seen.effects.update(connection.execute(select(effects.c.name)).scalars())
    return seen


class TaskExplorer(Explorer):
    """Explores one scenario of the task layer, once."""

    _scenario: TaskScenario
    _site: TaskSite | None = None
    _slot: RunningSlot | None = None
    _has_died = False

    def _open(self, address: Address, *, client_name: str) -> TaskSite:
        # One for all: to declare its tasks takes longer than to run them.
        self._site = self._site or TaskSite(address)
        self._site.open(address, client_name=client_name.replace(":", "-"))
        self._site.slot = self._slot
        return self._site

    def _run_child(self, point: int, address: Address, trace: Path) -> int:
        if not self._scenario.is_child:
            if self._fault == "lost_answer" and not self._scenario.needs_process:
                return self._run_here(point, address, trace)
            return super()._run_child(point, address, trace)
        # Shared with what is forked.
        self._slot, file = RunningSlot.create()
        with file:
            status = super()._run_child(point, address, trace)
        self._has_died = status == CRASHED
        return status

    def _run_here(self, point: int, address: Address, trace: Path) -> int:
        """As a child, which lives on after this fault; a fork would take longer than the scenario."""
        trace.touch()
        points = self._points(point, trace)
        with self._open(address, client_name=address.stream) as site:
            points.watch(site.handler_engine)
            try:
                return self._run_to_the_end(site, points)
            except Exception:
                traceback.print_exc()
                return FAILED
            finally:
                points.unwatch()

    def _run_to_the_end(self, site: Any, points: CrashPoints) -> int:
        site.points = points
        return super()._run_to_the_end(site, points)

    def _points(self, point: int, trace: Path) -> CrashPoints:
        return CrashPoints(point, self._fault, trace=trace, has_replies=False)

    def _may_raise(self, error: BaseException) -> bool:
        return isinstance(error, ConquietError)

    def _check_and_recover(self, address: Address, enqueued: list[str]) -> list[str]:
        name = address.stream.replace(":", "-")
        with self._open(address, client_name="look") as site:
            # What the child sent last may still be on its way; the server reads it before it sees the end.
            eventually(lambda: name not in {client["name"] for client in site.app.client.client_list()})
            left = look(site)
            broken = [*_broken_by_crash(left)]
            self._seen.redelivered += sum(left.effects.values()) and len(left.queued)
            if self._slot is not None and self._has_died:
                self._scenario.settle(site, self._slot.running)
                broken += _broken_by_crash(look(site))
            try:
                self._scenario.recover(site)
                _work_to_the_end(site)
                for queue in QUEUES:
                    site.app.control.purge_payloads(queue=queue, older_than_ms=0)
            except Exception as error:
                broken.append(f"the recovery failed: {error!r}")
            seen = look(site)
            broken += [*_broken_by_crash(seen), *self._broken_by_recovery(seen)]
            left_keys = list(site.app.client.scan_iter(match=f"*{site.app.namespace}*", count=1_000))
            if left_keys:
                site.app.client.delete(*left_keys)
        return broken

    def _broken_by_recovery(self, seen: TaskSnapshot) -> Iterator[str]:
        if seen.queued or seen.delayed or seen.follow_ups:
            yield f"not finished: {seen}"
        if seen.stored != seen.needed:
            yield f"content that nothing needs is kept: {seen.stored - seen.needed}"
        scenario, states = self._scenario, Counter(seen.states.values())
        if scenario.or_else == (seen.effects, states):
            return
        if seen.effects != scenario.effects:
            yield f"effects are {seen.effects}, not {scenario.effects}"
        if states != scenario.states:
            yield f"states are {states}, not {scenario.states}"


def _broken_by_crash(seen: TaskSnapshot) -> Iterator[str]:
    """What no crash may leave behind, not even for a moment."""
    for task_id, state in seen.states.items():
        is_there = task_id in seen.queued or task_id in seen.delayed
        # Of a revoked one the mark is all that keeps it from running.
        if TaskState(state).is_final and is_there and (state != "revoked" or task_id not in seen.marked):
            yield f"task {task_id} is {state} and still in a queue"
        if not TaskState(state).is_final and not is_there:
            yield f"task {task_id} is {state} and in no queue: lost"
    for task_id, count in (seen.queued + seen.dead).items():
        if count > 1:
            yield f"task {task_id} is there {count} times"
    if missing := seen.needed - seen.stored:
        yield f"content that is referred to is not there: {missing}"
    if any(count > 1 for count in seen.effects.values()):
        yield f"effects are doubled: {seen.effects}"


def _work_to_the_end(site: TaskSite) -> None:
    follow_ups._LEFT_AFTER_MS = -60_000
    site.take_over("worker", "worker-again", "dead", CONSUMER)
    for _ in range(_MAX_ROUNDS):
        _wait_until_due(site)
        left = iter(range(3))
        site.work("operator", is_last_round=lambda left=left: _is_finished(site) or next(left, None) is None)  # type: ignore[misc]
        for queue in QUEUES:
            follow_ups.FollowUps(site.app).perform_left(queue)
        if _is_finished(site):
            return


def _wait_until_due(site: TaskSite) -> None:
    """Sleep until a task that waits for its rate or its delay is due; rounds before that would be in vain."""
    client: Any = site.app.client
    pipeline = client.pipeline(transaction=False).time()
    for keys in map(site.app.keys, QUEUES):
        for due_times in (*keys.waiting, keys.delayed):
            pipeline.zrange(due_times, 0, 0, withscores=True)
    (seconds, microseconds), *firsts = pipeline.execute()
    in_s = [due / 1_000 - seconds - microseconds / 1_000_000 for first in firsts for _, due in first]
    # What is due much later is not of this scenario: the findings show it.
    time.sleep(max(0.0, min((one for one in in_s if one < _LONGEST_WAIT_S), default=0.0)))


def _is_finished(site: TaskSite) -> bool:
    client: Any = site.app.client
    pipeline = client.pipeline(transaction=False)
    for keys in map(site.app.keys, QUEUES):
        for stream in keys.streams:
            pipeline.xlen(stream)
        pipeline.hlen(keys.delayed_items).hlen(keys.follow_ups)
    return not any(pipeline.execute())
