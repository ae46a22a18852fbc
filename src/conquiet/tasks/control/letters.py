"""TaskLetter: tasks of a queue that are not tried again, read page by page, and purged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypedDict, Unpack

from conquiet.arguments import check_filter, check_non_negative_int
from conquiet.queue.connection import Client, as_text, run_command
from conquiet.queue.message import data_of
from conquiet.tasks.keys import QueueKeys

_ID = re.compile(r"(\d{1,20})-\d{1,20}")
_PAGE = 100


class LetterFilter(TypedDict, total=False):
    """Which dead letters; what is not given does not matter."""

    #: The full name of the exception, `shop.errors.NoStock`, or its last part.
    error_type: str
    #: The name of the task.
    task: str
    #: Dead-lettered at this time or later, ms since 1970.
    since_ms: int
    #: Dead-lettered at this time or before.
    until_ms: int


_FILTERS = {"error_type": str, "task": str, "since_ms": int, "until_ms": int}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLetter:
    """A task that is not tried again by itself, and why; `None` is what the letter lacks."""

    #: Of the letter; it begins with the time at which the task was given up.
    id: str
    queue: str
    #: Empty for an entry that was no task.
    task_id: str = ""
    name: str = ""
    #: As they were enqueued, maybe encrypted.
    args: Mapping[str, Any] = field(default_factory=dict)
    #: How often it was tried.
    attempts: int | None = None
    priority: int | None = None
    worker: str | None = None
    error_type: str = ""
    error: str = ""
    traceback: str = ""
    #: The task as it was enqueued.
    envelope: Mapping[str, Any] | None = field(default=None, repr=False)

    @classmethod
    def read(cls, queue: str, letter_id: str, fields: Any) -> Self:
        """One entry of the dead letters; whatever is in it."""
        try:
            found = json.loads(data_of(fields))
        except ValueError:
            found = None
        letter = found if isinstance(found, dict) else {}
        envelope = letter.get("envelope")
        content: dict[str, Any] = envelope if isinstance(envelope, dict) else {}
        args = content.get("args")
        return cls(
            id=letter_id,
            queue=queue,
            task_id=str(letter.get("originalMessageId") or ""),
            name=str(content.get("name") or ""),
            args=args if isinstance(args, dict) else {},
            attempts=letter.get("attempts"),
            priority=letter.get("partition"),
            worker=letter.get("lastConsumer"),
            error_type=str(letter.get("errorType") or ""),
            error=str(letter.get("errorMessage") or ""),
            traceback=str(letter.get("traceback") or ""),
            envelope=envelope if isinstance(envelope, dict) else None,
        )


def find_letter(client: Client, keys: QueueKeys, name: str) -> TaskLetter | None:
    """The letter of a task, by its id or that of the task."""
    since = 0
    if match := _ID.fullmatch(name):
        for letter in read_letters(client, keys, name, name):
            return letter
        # A letter is never older than its task; a little is left for clocks that differ. Other ids, as of
        # schedules and of canvases, may be of any letter.
        since = max(0, int(match[1]) - 600_000)
    for letter in read_letters(client, keys, f"{since}-0", "+") if name else ():
        if letter.task_id == name:
            return letter
    return None


def matching_letters(client: Client, keys: QueueKeys, **which: Unpack[LetterFilter]) -> Iterator[TaskLetter]:
    """The letters that are there now, the oldest first; those added later are left out.

    Raises:
        TypeError: a filter is unknown, or of another type.
    """
    check_filter(which, _FILTERS, "dead letters")
    command = ("XREVRANGE", keys.dead_letters, which.get("until_ms", "+"), "-", "COUNT", 1)
    last = run_command(client, *command, stream=keys.dead_letters, group=None)
    if not last:
        return
    for letter in read_letters(client, keys, f"{which.get('since_ms', 0)}-0", as_text(last[0][0])):
        kinds = (letter.error_type, letter.error_type.rpartition(".")[2])
        if which.get("error_type", kinds[0]) in kinds and which.get("task", letter.name) == letter.name:
            yield letter


def read_letters(
    client: Client, keys: QueueKeys, start: str, end: str, *, page: int = _PAGE
) -> Iterator[TaskLetter]:
    """The letters of an interval of ids, the oldest first, read page by page."""
    entries = None
    while entries is None or len(entries) == page:
        command = ("XRANGE", keys.dead_letters, start, end, "COUNT", page)
        entries = run_command(client, *command, stream=keys.dead_letters, group=None)
        for entry_id, fields in entries:
            letter_id = as_text(entry_id)
            start = f"({letter_id}"
            yield TaskLetter.read(keys.queue, letter_id, fields)


def purge_letters(
    client: Client,
    keys: QueueKeys,
    names: Iterable[str] | None = None,
    *,
    older_than_ms: int | None = None,
    until_ms: int | None = None,
    dry_run: bool = False,
) -> int:
    """Delete letters for good, by id, age or time, and return how many; with `dry_run` only count them."""
    stream = keys.dead_letters
    if sum(given is not None for given in (names, older_than_ms, until_ms)) != 1:
        raise ValueError("purge needs names or older_than_ms or until_ms, and one of them alone")
    if names is not None:
        found = [find_letter(client, keys, name) for name in dict.fromkeys(names)]
        letter_ids = [letter.id for letter in found if letter is not None]
        if dry_run or not letter_ids:
            return len(letter_ids)
        return int(run_command(client, "XDEL", stream, *letter_ids, stream=stream, group=None))
    if until_ms is None:
        check_non_negative_int("older_than_ms", older_than_ms)
        seconds, microseconds = run_command(client, "TIME", stream=stream, group=None)
        until_ms = int(seconds) * 1000 + int(microseconds) // 1000 - (older_than_ms or 0)
    # Those of this very millisecond too: an age of 0 means all.
    before_ms = max(1, until_ms + 1)
    if dry_run:
        return sum(1 for _ in read_letters(client, keys, "-", f"({before_ms}-0"))
    return int(
        run_command(client, "XTRIM", stream, "MINID", "=", f"{before_ms}-0", stream=stream, group=None)
    )
