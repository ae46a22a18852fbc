"""Retry of dead letters: the task of one becomes a new task."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import Unpack

from conquiet.arguments import check_positive_int
from conquiet.queue.connection import Client, as_text, run_command
from conquiet.tasks.codec import EnvelopeCodec, stored_args
from conquiet.tasks.control.letters import LetterFilter, TaskLetter, find_letter, matching_letters
from conquiet.tasks.envelope import ENCRYPTION_KEY, TaskEnvelope, new_id
from conquiet.tasks.errors import DeadLetterError, PayloadError
from conquiet.tasks.keys import QueueKeys
from conquiet.tasks.scripts import control as scripts
from conquiet.tasks.scripts.enqueue import Enqueued, NewTask

#: What belongs to the attempts that were given up: the canvas has ended without it, and its time is over.
_NOT_CARRIED = ("canvas", "expiresAt")
#: As the record of any task that has not ended.
_RECORD_MS = 30 * 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryReport:
    """What came of retrying many dead letters."""

    #: Each task with the id of the new one; in a dry run that is empty.
    retried: tuple[tuple[str, str], ...]
    #: Letters that contain no task, or one that this app cannot sign or decrypt: their ids, and why.
    refused: tuple[tuple[str, str], ...]
    is_dry_run: bool


def retry_dead_letter(client: Client, keys: QueueKeys, codec: EnvelopeCodec, name: str) -> str:
    """Enqueue the task of a dead letter again, with an id of its own, attempts counted from 0; once.

    Args:
        name: the id of the task, or of the letter.

    Returns:
        The id of the new task, also to a second call while the old task's record is kept.

    Raises:
        DeadLetterError: there is no such letter, or it contains no task.
    """
    letter = find_letter(client, keys, name)
    if letter is None:
        command = ("HGET", keys.record(name), "retried_as")
        before = run_command(client, *command, stream=keys.prefix, group=None)
        if before:
            return as_text(before)
        raise DeadLetterError(
            keys.queue, name, "it is not there: retried or purged before, or another queue's"
        )
    enqueued = _retry(client, keys, codec, letter)
    if not enqueued.id:
        raise DeadLetterError(keys.queue, name, "another call has just retried or purged it")
    return enqueued.id


def retry_dead_letters(
    client: Client,
    keys: QueueKeys,
    codec: EnvelopeCodec,
    *,
    limit: int | None = None,
    per_second: float | None = None,
    dry_run: bool = False,
    **which: Unpack[LetterFilter],
) -> RetryReport:
    """Retry the dead letters that are there now, the oldest first, up to `limit`; those refused stay."""
    if limit is not None:
        check_positive_int("limit", limit)
    retried: list[tuple[str, str]] = []
    refused: list[tuple[str, str]] = []
    began = time.monotonic()
    for letter in matching_letters(client, keys, **which):
        if len(retried) == limit:
            break
        try:
            if dry_run:
                _envelope_of(codec, letter)
                retried.append((letter.task_id, ""))
                continue
            if per_second is not None:
                time.sleep(max(0.0, began + len(retried) / per_second - time.monotonic()))
            enqueued = _retry(client, keys, codec, letter)
        except DeadLetterError as error:
            refused.append((letter.id, error.reason))
            continue
        # Else another call was quicker.
        if enqueued.is_new:
            retried.append((letter.task_id, enqueued.id))
    return RetryReport(retried=tuple(retried), refused=tuple(refused), is_dry_run=dry_run)


def _retry(client: Client, keys: QueueKeys, codec: EnvelopeCodec, letter: TaskLetter) -> Enqueued:
    envelope = _envelope_of(codec, letter)
    task = _new_task(codec, envelope)
    enqueued = scripts.retry_dead_letter(client, keys, letter.id, letter.task_id, task)
    if not enqueued.is_new and task.stored_key and enqueued.id not in ("", task.id):
        # Another call was quicker.
        codec.payloads.remove_unneeded(keys.queue, task.stored_key)
    before = stored_args(TaskEnvelope.of(letter.envelope or {}))
    if before is not None and enqueued.id:
        # The new task has a copy of its own, and the letter is gone.
        codec.payloads.remove_unneeded(keys.queue, before.key)
    return enqueued


def _envelope_of(codec: EnvelopeCodec, letter: TaskLetter) -> TaskEnvelope:
    """The envelope of a letter as it was enqueued, decrypted, with its arguments.

    Raises:
        DeadLetterError: it contains no task, or this app has not the keys or the arguments for it.
    """
    if letter.envelope is None:
        raise DeadLetterError(letter.queue, letter.id, "it contains no task that can be read")
    try:
        sent = json.dumps(letter.envelope).encode()
        envelope = codec.decode(sent)
        codec.load_args(envelope)
    except (ValueError, PayloadError) as error:
        raise DeadLetterError(letter.queue, letter.id, str(error)) from error
    if envelope.headers.get(ENCRYPTION_KEY) and "encrypted" in envelope.args:
        text = "it is encrypted: give the app that has the key"
        raise DeadLetterError(letter.queue, letter.id, text)
    if envelope.headers.get("signature") is not None and codec.signing is None:
        raise DeadLetterError(letter.queue, letter.id, "it is signed: give the app that has the key")
    return envelope


def _new_task(codec: EnvelopeCodec, old: TaskEnvelope) -> NewTask:
    """A task as it is enqueued again."""
    meta = {name: value for name, value in old.meta.items() if name not in _NOT_CARRIED}
    new = replace(old, id=new_id(), attempt=0, not_before=None, meta={**meta, "retryOf": old.id})
    encoded = codec.encode(new)
    return NewTask(
        id=new.id,
        name=new.name,
        data=encoded.data,
        stored_key=encoded.stored_key,
        priority=new.priority,
        record_ttl_ms=0 if new.meta.get("ignoreResult") is True else _RECORD_MS,
        history=json.dumps({"retryOf": old.id}),
    )
