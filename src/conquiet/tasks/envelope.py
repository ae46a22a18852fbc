"""TaskEnvelope: the twelve fields of a task as one JSON object in the entry's `data`."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from json.encoder import encode_basestring as quoted
from operator import itemgetter
from typing import Any, NamedTuple, Self

from conquiet.payload import decode_payload, encode_payload
from conquiet.tasks import clock
from conquiet.tasks.keys import DEFAULT_MAX_RETRIES, DEFAULT_PRIORITY, PRIORITIES

SCHEMA_VERSION = 1
#: Of an envelope whose arguments are in the payload store: a reader that knows no store must not run it.
STORED_VERSION = 2
#: The field of an envelope's meta with the reference to its arguments.
STORED_ARGS = "storedArgs"
#: The header with the id of the key by which an envelope, and its stored arguments, are encrypted.
ENCRYPTION_KEY = "encryption-key"
#: What every meta has.
_META = {"schemaVersion": SCHEMA_VERSION}
_META_TEXT = encode_payload(_META).decode()

_KINDS: dict[str, type | tuple[type, ...]] = {
    "id": str,
    "name": str,
    "args": dict,
    "headers": dict,
    "enqueuedAt": str,
    "notBefore": (str, type(None)),
    "priority": int,
    "attempt": int,
    "maxRetries": int,
    "visibilityTimeout": (int, type(None)),
    "queue": str,
    "meta": dict,
}


_values_of = itemgetter(*_KINDS)
#: Of nearly all envelopes; others are looked at one field after the other.
_USUAL_TYPES = {
    (str, str, dict, dict, str, not_before, int, int, int, visibility, str, dict)
    for not_before in (str, type(None))
    for visibility in (int, type(None))
}


class LaterVersionError(ValueError):
    """An envelope of a later schema version: not malformed, but for a worker of that version."""

    def __init__(self, version: object) -> None:
        super().__init__(
            f"its envelope has schema version {version!r}, this conquiet reads up to {STORED_VERSION}"
        )


class _Ids:
    """Ids of tasks: milliseconds and a random number, as the ids of stream entries are written."""

    def __init__(self) -> None:
        self._random = secrets.randbits(40) << 20
        self._count = 0

    def __call__(self) -> str:
        self._count += 1
        if self._count >> 20:
            self.__init__()  # type: ignore[misc]  # new random bits
        return f"{time.time_ns() // 1_000_000}-{self._random + self._count}"


new_id = _Ids()
# A forked child must not go on with its parent's ids.
os.register_at_fork(after_in_child=new_id.__init__)  # type: ignore[misc]


class EnvelopeFrame(NamedTuple):
    """The JSON of an envelope without its id, arguments and time: the same for many calls."""

    after_id: str
    after_args: str
    after_time: str

    def encode(self, task_id: str, args: Mapping[str, Any], enqueued_at: datetime) -> bytes:
        """The entry's data; refuses what would not come back equal."""
        return encode_payload(
            dict(args),
            f'{{"id":{quoted(task_id)}{self.after_id}',
            f"{self.after_args}{_text_of(enqueued_at)}{self.after_time}",
        )

    def around(self, task_id: str, args: str, enqueued_at: datetime) -> bytes:
        """As `encode`, with arguments that are JSON already."""
        time = _text_of(enqueued_at)
        return f'{{"id":"{task_id}"{self.after_id}{args}{self.after_args}{time}{self.after_time}'.encode()


# Not frozen, as one is made for every task sent and read: that would triple what it costs.
@dataclass(slots=True, kw_only=True)
class TaskEnvelope:
    """One task as it is written; field names on the wire are those of document 004."""

    name: str
    args: Mapping[str, Any]
    queue: str = "default"
    id: str = field(default_factory=lambda: new_id())
    headers: Mapping[str, str] = field(default_factory=dict)
    enqueued_at: datetime = field(default_factory=clock.now)
    not_before: datetime | None = None
    priority: int = DEFAULT_PRIORITY
    #: Counted from 0; a retry stays in its place, so that the entry itself says 0.
    attempt: int = 0
    max_retries: int = DEFAULT_MAX_RETRIES
    visibility_timeout_ms: int | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The entry's data, as JSON of `fields()`; refuses what would not come back equal."""
        return self.frame().encode(self.id, self.args, self.enqueued_at)

    def frame(self) -> EnvelopeFrame:
        """Its text around what each call has anew."""
        # As text around the arguments: of most envelopes nothing else needs to be looked through.
        headers = encode_payload(dict(self.headers)).decode() if self.headers else "{}"
        meta = encode_payload({**_META, **self.meta}).decode() if self.meta else _META_TEXT
        not_before = "null" if self.not_before is None else f'"{_text_of(self.not_before)}"'
        visibility = "null" if self.visibility_timeout_ms is None else self.visibility_timeout_ms
        return EnvelopeFrame(
            f',"name":{quoted(self.name)},"args":',
            f',"headers":{headers},"enqueuedAt":"',
            f'","notBefore":{not_before},"priority":{self.priority},"attempt":{self.attempt},'
            f'"maxRetries":{self.max_retries},"visibilityTimeout":{visibility},"queue":{quoted(self.queue)},'
            f'"meta":{meta}}}',
        )

    def fields(self) -> dict[str, Any]:
        """As it is written."""
        return {
            "id": self.id,
            "name": self.name,
            "args": self.args,
            "headers": self.headers,
            "enqueuedAt": _text_of(self.enqueued_at),
            "notBefore": None if self.not_before is None else _text_of(self.not_before),
            "priority": self.priority,
            "attempt": self.attempt,
            "maxRetries": self.max_retries,
            "visibilityTimeout": self.visibility_timeout_ms,
            "queue": self.queue,
            "meta": {**_META, **self.meta},
        }

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The envelope in an entry's data.

        Raises:
            ValueError: it is not one, or of a later schema version.
        """
        return cls.of(decode_payload(data))

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """The envelope of these fields; raises as `decode`."""
        if not fields.keys() >= _KINDS.keys() or tuple(map(type, _values_of(fields))) not in _USUAL_TYPES:
            _check_kinds(fields)
        meta = fields["meta"]
        version = meta.get("schemaVersion", SCHEMA_VERSION)
        if not isinstance(version, int):
            # Handed back as a later version's, it would go round and round.
            raise ValueError(f"its envelope has no valid schemaVersion: {version!r:.100}")  # noqa: TRY004 -- of data
        if version > STORED_VERSION:
            raise LaterVersionError(version)
        if fields["priority"] not in PRIORITIES:
            raise ValueError(f"its envelope has no valid priority: {fields['priority']!r}")
        not_before = fields["notBefore"]
        return cls(
            id=fields["id"],
            name=fields["name"],
            args=fields["args"],
            headers=fields["headers"],
            enqueued_at=_moment_of(fields["enqueuedAt"]),
            not_before=None if not_before is None else _moment_of(not_before),
            priority=fields["priority"],
            attempt=fields["attempt"],
            max_retries=fields["maxRetries"],
            visibility_timeout_ms=fields["visibilityTimeout"],
            queue=fields["queue"],
            meta=meta,
        )


def _check_kinds(fields: Mapping[str, Any]) -> None:
    for name, kind in _KINDS.items():
        value = fields.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"its envelope has no valid {name}: {value!r:.100}")  # noqa: TRY004 -- of data


def _moment_of(text: str) -> datetime:
    """In UTC, which one without an offset is as well.

    Raises:
        ValueError: it is no time, or one that UTC does not have, at the ends of the calendar.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is UTC:
        return moment
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"its envelope has no valid time: {text!r:.100}") from error


def _text_of(moment: datetime) -> str:
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    return moment.isoformat(timespec="milliseconds")
