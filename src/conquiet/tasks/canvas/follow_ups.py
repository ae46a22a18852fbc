"""FollowUps: what is enqueued, counted or failed after a task of a canvas has ended.

The script that settles the task also writes what is to follow. The worker then does it, and another one if it
dies in between; each step has its id from the beginning, so that what is done twice has its effect once.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from conquiet.errors import QueueError
from conquiet.queue.connection import as_text, is_unanswered, run_command
from conquiet.tasks import clock
from conquiet.tasks.app import TaskApp
from conquiet.tasks.canvas.nodes import Fork, Link, Membership, Position, Step, longest_delay_ms
from conquiet.tasks.envelope import TaskEnvelope
from conquiet.tasks.errors import PayloadStoreError, TaskError
from conquiet.tasks.keys import QueueKeys
from conquiet.tasks.options import UNFINISHED_TTL_MS, TaskOptions
from conquiet.tasks.payloads import STORED_RESULT, Reference, reference_in
from conquiet.tasks.record import TaskState
from conquiet.tasks.scripts import canvas as scripts
from conquiet.tasks.scripts.control import revoked

_log = logging.getLogger(__name__)

#: The options of what is enqueued by a canvas: everything is in its envelope.
_OPTIONS = TaskOptions()

#: What has waited for so long was left by a worker that died.
_LEFT_AFTER_MS = 5_000


def follow_up_of(meta: Mapping[str, Any], *, state: TaskState, result: bytes | None, error: str) -> str:
    """What is to follow on a task that has ended, as JSON; empty for a task that is in no canvas."""
    carried = meta.get("canvas")
    if not isinstance(carried, Mapping):
        return ""
    facts = {"at": clock.now_ms() / 1000, "canvas": carried, "state": state, "error": error}
    reference = None if result is None else reference_in(result)
    if reference is None:
        facts["result"] = None if result is None else json.loads(result)
    else:
        # Without "result": a worker that knows no payload store cannot go on with a wrong one.
        facts["stored"] = reference.to_json()
    try:
        return json.dumps(facts)
    except RecursionError:
        _log.error("what is to follow on a task is nested too deeply to be written: nothing follows")
        return ""


class FollowUps:
    """Starts, continues and ends canvases."""

    def __init__(self, app: TaskApp) -> None:
        self._app = app

    def start(self, steps: Sequence[Step], value: Any, position: Position) -> list[TaskEnvelope]:
        """Enqueue the first of these steps, with the result of the step before it; returns delayed ones.

        Args:
            position: of the canvas, and the group that all of these steps are a member of.
        """
        delayed: list[TaskEnvelope] = []

        def envelopes() -> Iterator[tuple[TaskEnvelope, TaskOptions]]:
            for envelope in self._enqueued_by(steps, value, position):
                if envelope.not_before is not None:
                    delayed.append(envelope)
                yield envelope, _OPTIONS

        self._app.send_envelopes(envelopes())
        return delayed

    def perform(self, keys: QueueKeys, task_id: str, follow_up: str) -> bool:
        """Do what is to follow on a task, and forget it; what cannot be done stays, and `False` is returned.

        Raises:
            QueueError, PayloadStoreError: it is kept.
        """
        try:
            self._continue(json.loads(follow_up))
        except (QueueError, PayloadStoreError):
            raise
        except Exception:  # noqa: BLE001 -- anybody may have written it; the log has why
            text = "what is to follow on task %s of queue %r cannot be done, and stays"
            _log.warning(text, task_id, keys.queue, exc_info=True)
            return False
        run_command(self._app.client, "HDEL", keys.follow_ups, task_id, stream=keys.prefix, group=None)
        return True

    def perform_or_keep(self, keys: QueueKeys, task_id: str, follow_up: str) -> bool:
        """As `perform`; what fails, as when a full server refuses to add, is done with `perform_left`."""
        try:
            return self.perform(keys, task_id, follow_up)
        except (QueueError, PayloadStoreError) as error:
            text = "what follows on task %s of queue %r is tried again: %s"
            _log.warning(text, task_id, keys.queue, error)
            return False

    def perform_left(self, queue: str) -> int:
        """Do what workers that died have left; returns how many there were.

        Raises:
            QueueError: the server does not answer. What fails otherwise keeps no other from its turn.
        """
        keys, done, cursor = self._app.keys(queue), 0, b"0"
        oldest = (clock.now_ms() - _LEFT_AFTER_MS) / 1000
        while True:
            command = ("HSCAN", keys.follow_ups, cursor, "COUNT", 100)
            cursor, reply = run_command(self._app.client, *command, stream=keys.prefix, group=None)
            flat = [part for pair in reply.items() for part in pair] if isinstance(reply, dict) else reply
            for task_id, follow_up in zip(flat[::2], flat[1::2], strict=True):
                if _written_at(follow_up) > oldest:
                    continue
                try:
                    done += self.perform(keys, as_text(task_id), as_text(follow_up))
                except (QueueError, PayloadStoreError) as error:
                    if isinstance(error, QueueError) and is_unanswered(error):
                        raise
                    text = "what is to follow on task %s of queue %r is tried again: %s"
                    _log.warning(text, as_text(task_id), queue, error)
            if int(cursor) == 0:
                return done

    def _continue(self, facts: Mapping[str, Any]) -> None:
        position = Position.of(facts["canvas"])
        if facts["state"] == TaskState.SUCCEEDED and position.then:
            try:
                delayed = self.start(position.then, self._result_in(facts), replace(position, then=()))
                self._end_revoked(delayed, position.canvas)
            except PayloadStoreError:
                raise
            except TaskError as error:
                # As a result that is too large to be passed on: it will not be smaller the next time.
                text = f"a task before it succeeded, and its result could not be passed on: {error}"
                self._fail(position, TaskState.DEAD_LETTERED, text, str(error))
        elif facts["state"] == TaskState.SUCCEEDED:
            is_stored = "stored" in facts
            result = json.dumps(facts["stored"] if is_stored else facts["result"])
            result = STORED_RESULT.decode() + result if is_stored else result
            self._count(position.member, is_success=True, result=result)
        else:
            state, why = facts["state"], facts["error"]
            self._fail(position, state, f"a task before it is {state.replace('_', '-')}: {why}", why)

    def _end_revoked(self, delayed: Sequence[TaskEnvelope], canvas: str) -> None:
        """Have delayed steps end now if their canvas is revoked.

        That may be forgotten before they are due; it is not if it comes after they were enqueued.
        """
        for queue in {envelope.queue for envelope in delayed}:
            keys = self._app.keys(queue)
            _, found = revoked(self._app.client, keys, (canvas,))
            for envelope in delayed if found else ():
                if envelope.queue == queue:
                    command = ("ZADD", keys.delayed, "XX", clock.now_ms(), envelope.id)
                    run_command(self._app.client, *command, stream=keys.prefix, group=None)

    def _result_in(self, facts: Mapping[str, Any]) -> Any:
        if "stored" not in facts:
            return facts["result"]
        return self._app.codec.load_result(Reference.of(facts["stored"]))

    def _enqueued_by(self, steps: Sequence[Step], value: Any, position: Position) -> Iterator[TaskEnvelope]:
        first, rest = steps[0], tuple(steps[1:])
        if isinstance(first, Link):
            yield _envelope(first, value, replace(position, then=rest))
            return
        next_id = self._create_group(first, rest, position)
        for number, member in enumerate(first.members):
            membership = Membership(group=first.id, queue=first.queue, number=number, next_id=next_id)
            inner = Position(canvas=position.canvas, member=membership)
            yield from self._enqueued_by(member, value, inner)

    def _create_group(self, fork: Fork, rest: tuple[Step, ...], position: Position) -> str:
        # The task behind it reads the results.
        delay_ms = longest_delay_ms((fork, *rest[:1]))
        group = scripts.NewGroup(
            id=fork.id,
            members=len(fork.members),
            on_error=fork.on_error,
            ttl_ms=UNFINISHED_TTL_MS + delay_ms,
        )
        stored_key = stored_for = ""
        if rest:
            body = rest[0]
            assert isinstance(body, Link)  # noqa: S101 -- for mypy: a group behind a group is gathered before
            envelope = _envelope(body, None, replace(position, then=rest[1:]))
            results = {"group": fork.id, "queue": fork.queue, "total": len(fork.members), "into": body.into}
            envelope.meta = {**envelope.meta, "resultsOf": results}
            encoded = self._app.codec.encode(envelope, group=(fork.queue, fork.id))
            stored_key, stored_for = encoded.stored_key, envelope.queue
            group = replace(
                group,
                next_id=envelope.id,
                next_name=envelope.name,
                next_priority=envelope.priority,
                next_data=encoded.data,
                next_canvas=json.dumps(envelope.meta["canvas"]),
                next_delay_ms=0 if body.due_ms else body.delay_ms,
                next_due_ms=body.due_ms,
            )
        keys = self._app.keys(fork.queue)
        if not scripts.create_group(self._app.client, keys, group) and stored_key:
            # Created before, by another worker, or by this call if its reply was lost.
            command = ("HMGET", keys.group(fork.id), "next")
            [data] = run_command(self._app.client, *command, stream=keys.prefix, group=None)
            if data is not None and stored_key.encode() not in data:
                self._app.payloads.remove_unneeded(stored_for, stored_key)
        return group.next_id

    def _count(self, member: Membership | None, *, is_success: bool, result: str) -> None:
        if member is not None:
            keys = self._app.keys(member.queue)
            counted = scripts.count_member(
                self._app.client,
                keys,
                member.group,
                member.next_id,
                member=member.number,
                is_success=is_success,
                result=result,
                ttl_ms=UNFINISHED_TTL_MS,
            )
            if counted is None:
                text = "member %d of group %s in queue %r has ended, and the group is gone: nothing follows"
                _log.warning(text, member.number, member.group, member.queue)
            elif counted.follow_up:
                self.perform(keys, member.next_id, counted.follow_up)

    def _fail(self, position: Position, state: str, text: str, error: str) -> None:
        """What follows will never run: its callers must know the text, those of its group the error."""
        if position.then:
            last = position.then[-1]
            assert isinstance(last, Link)  # noqa: S101 -- for mypy: a group at the end is gathered
            name = str(last.envelope["name"])
            scripts.fail_task(
                self._app.client,
                self._app.keys(last.queue),
                last.id,
                name,
                error=text,
                state=TaskState.REVOKED if state == TaskState.REVOKED else TaskState.DEAD_LETTERED,
                ttl_ms=UNFINISHED_TTL_MS,
            )
        self._count(position.member, is_success=False, result=error)


def _written_at(follow_up: bytes) -> float:
    try:
        return float(json.loads(follow_up)["at"])
    except (ValueError, KeyError, TypeError, RecursionError):
        # Tried, and reported.
        return 0.0


def _envelope(link: Link, value: Any, position: Position) -> TaskEnvelope:
    envelope = TaskEnvelope.of(link.envelope)
    now = clock.now()
    envelope.enqueued_at = now
    envelope.not_before = now + timedelta(milliseconds=link.delay_ms) if link.delay_ms else None
    if link.due_ms:
        envelope.not_before = datetime.fromtimestamp(link.due_ms / 1000, UTC)
    if link.into is not None:
        envelope.args = {**envelope.args, link.into: value}
    envelope.meta = {**envelope.meta, "canvas": position.to_json()}
    return envelope
