"""One dead letter as it is kept, read with patience: what cannot be read is told, never in the way."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from conquiet.errors import TopicError
from conquiet.mq.envelope import Envelope
from conquiet.payload import Payload, decode_payload

#: Field names and values as they came, in their order.
RawFields = tuple[tuple[bytes, bytes], ...]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterRecord:
    """A message that will not be tried again by itself, and why; `None` is what the letter does not say."""

    #: Names the letter in its topic: `1700000000000-0`, on a cluster `1700000000000-0@3` with its partition.
    id: str
    topic: str
    group: str | None = None
    partition: int | None = None
    key: str | None = None
    #: The entry under which the message first came.
    original_id: str | None = None
    attempts: int | None = None
    first_delivered_at_ms: int | None = None
    last_delivered_at_ms: int | None = None
    dead_lettered_at_ms: int
    last_consumer: str | None = None
    error_type: str = ""
    error_message: str = ""
    traceback: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    #: What was sent; `None` if that was no message.
    payload: Payload | None = None
    #: Instead of the payload: the fields of the entry that was no message, or of a letter that is no letter.
    raw_fields: RawFields | None = None
    envelope: Envelope | None = field(default=None, repr=False)

    @classmethod
    def read(
        cls, fields: Mapping[bytes, bytes], *, letter_id: str, topic: str, partition: int | None
    ) -> DeadLetterRecord:
        """The record of one entry of the dead letters, whatever is in it.

        Args:
            partition: the one whose dead letters these are, `None` if they are the whole topic's.
        """
        at_ms = int(letter_id.partition("-")[0])
        try:
            letter = decode_payload(fields[b"data"])
        except (KeyError, ValueError) as error:
            return cls(
                id=letter_id,
                topic=topic,
                partition=partition,
                dead_lettered_at_ms=at_ms,
                error_type="UnreadableLetter",
                error_message=f"this dead letter was not written by conquiet: {error}",
                raw_fields=tuple(fields.items()),
            )
        where = _known(letter, "partition", int) if partition is None else partition
        return _record(letter, letter_id, topic, where, at_ms)

    def replayed(self, *, to_all_groups: bool) -> Envelope:
        """The envelope of the message that a replay adds.

        Raises:
            TopicError: the letter has no message, or does not say whose or from which partition it is.
        """
        if self.envelope is None:
            raise TopicError(
                self.topic,
                f"cannot replay its dead letter {self.id}: it holds no message ({self.error_message}). "
                "Look at its raw_fields, send what was meant, and purge the letter",
            )
        if self.partition is None or (self.group is None and not to_all_groups):
            raise TopicError(
                self.topic,
                f"cannot replay its dead letter {self.id}: it does not say its partition and group",
            )
        return self.envelope.copied(
            attempt=0,
            failure=None,
            original_id=self.original_id,
            replayed_from=self.id,
            for_group=None if to_all_groups else self.group,
        )


def _record(
    letter: Payload, letter_id: str, topic: str, partition: int | None, at_ms: int
) -> DeadLetterRecord:
    envelope = _envelope(letter, topic, partition)
    return DeadLetterRecord(
        id=letter_id,
        topic=topic,
        group=_known(letter, "group", str),
        partition=partition,
        key=_known(letter, "key", str),
        original_id=_known(letter, "originalMessageId", str),
        attempts=_known(letter, "attempts", int),
        first_delivered_at_ms=_known(letter, "firstDeliveredAt", int),
        last_delivered_at_ms=_known(letter, "lastDeliveredAt", int),
        dead_lettered_at_ms=_known(letter, "deadLetteredAt", int) or at_ms,
        last_consumer=_known(letter, "lastConsumer", str),
        error_type=_known(letter, "errorType", str) or "",
        error_message=_known(letter, "errorMessage", str) or "",
        traceback=_known(letter, "traceback", str) or "",
        headers=_known(letter, "headers", dict) or {},
        payload=None if envelope is None else envelope.payload,
        raw_fields=_raw_fields(letter),
        envelope=envelope,
    )


def _known(letter: Payload, name: str, kind: type[_T]) -> _T | None:
    value = letter.get(name)
    return value if isinstance(value, kind) else None


def _envelope(letter: Payload, topic: str, partition: int | None) -> Envelope | None:
    data = letter.get("envelope")
    if not isinstance(data, dict):
        return None
    return Envelope.of(data, topic=topic, partition=partition or 0)


def _raw_fields(letter: Payload) -> RawFields | None:
    encoded: Any = letter.get("fieldsBase64")
    if encoded is None:
        return None
    try:
        return tuple((base64.b64decode(name), base64.b64decode(value)) for name, value in encoded)
    except (TypeError, ValueError, binascii.Error):
        return ((b"fieldsBase64", repr(encoded).encode()),)
