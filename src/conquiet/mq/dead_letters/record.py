"""One dead letter as it is kept; reading it never fails, whatever is in it."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from conquiet.errors import TopicError
from conquiet.mq.envelope import Envelope, check_envelope, new_id
from conquiet.payload import Payload, decode_payload

#: Field names and values as they came, in their order.
RawFields = tuple[tuple[bytes, bytes], ...]

#: Attributes of a record, each with its name and type on the wire.
_ON_THE_WIRE: dict[str, tuple[str, type]] = {
    "group": ("group", str),
    "partition": ("partition", int),
    "key": ("key", str),
    "original_id": ("originalMessageId", str),
    "attempts": ("attempts", int),
    "first_delivered_at_ms": ("firstDeliveredAt", int),
    "last_delivered_at_ms": ("lastDeliveredAt", int),
    "dead_lettered_at_ms": ("deadLetteredAt", int),
    "last_consumer": ("lastConsumer", str),
    "error_type": ("errorType", str),
    "error_message": ("errorMessage", str),
    "traceback": ("traceback", str),
    "headers": ("headers", dict),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterRecord:
    """A message that is not tried again until it is replayed, and why; `None` is what the letter lacks.

    Examples:
        >>> returns = Topics(client).create("returns", partitions=1)
        >>> sent = Producer(client).send(returns, {"order_id": 7}, key="ann")
        >>> def refuse(msg):
        ...     return DeadLetter("no such order")
        >>> report = drain_topic(returns, "couriers", refuse, limits=DrainLimits(idle_ms=50))
        >>> letter = DeadLetters(returns).list().letters[0]
        >>> letter.group, letter.key, letter.payload, letter.error_message
        ('couriers', 'ann', {'order_id': 7}, 'no such order')
    """

    #: Names the letter in its topic: `1700000000000-0`, on a cluster `1700000000000-0@3` with its partition.
    id: str
    #: The topic, or the key of the plain stream.
    topic: str
    group: str | None = None
    partition: int | None = None
    key: str | None = None
    #: The entry under which the message was first delivered.
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
    #: What was sent; `None` if the entry was malformed.
    payload: Payload | None = None
    #: Instead of the payload: the fields of the malformed entry, or of a malformed letter.
    raw_fields: RawFields | None = None
    envelope: Envelope | None = field(default=None, repr=False)
    #: Why the message cannot be read, if it cannot.
    problem: str = ""
    #: Of the letter, in bytes.
    size: int = field(default=0, repr=False, compare=False)

    @classmethod
    def read(
        cls, fields: Mapping[bytes, bytes], *, letter_id: str, topic: str, partition: int | None
    ) -> DeadLetterRecord:
        """The record of one entry of the dead letters.

        Args:
            partition: the one that these dead letters are of, `None` if they are the whole topic's.
        """
        values: dict[str, Any] = {
            "dead_lettered_at_ms": int(letter_id.partition("-")[0]),
            "size": sum(map(len, fields.values())),
        }
        try:
            letter = decode_payload(fields[b"data"])
        except (KeyError, ValueError) as error:
            letter = {}
            values["error_type"] = "UnreadableLetter"
            values["error_message"] = f"this dead letter was not written by conquiet: {error}"
            values["raw_fields"] = tuple(fields.items())
        for name, (wire_name, kind) in _ON_THE_WIRE.items():
            if isinstance(letter.get(wire_name), kind):
                values[name] = letter[wire_name]
        if partition is not None:
            values["partition"] = partition
        if "fieldsBase64" in letter:
            values["raw_fields"] = _decoded(letter["fieldsBase64"])
        if isinstance(data := letter.get("data"), str):
            values["raw_fields"] = ((b"data", data.encode()),)
        if isinstance(sent := letter.get("envelope"), dict):
            try:
                check_envelope(sent)
            except ValueError as error:
                raw = json.dumps(sent, ensure_ascii=False).encode()
                values |= {"problem": str(error), "raw_fields": ((b"data", raw),)}
            else:
                number = values.get("partition") or 0
                envelope = Envelope.of(sent, topic=topic, partition=number, keeps_unknown=True)
                values |= {"envelope": envelope, "payload": envelope.payload}
        return cls(id=letter_id, topic=topic, **values)

    def replayed(self, *, to_all_groups: bool) -> Envelope:
        """The envelope of the message that a replay adds.

        Raises:
            TopicError: the letter contains no message, or lacks its partition and group.
        """
        if self.envelope is None:
            raise self.refusal(
                f"it contains no message that can be read ({self.problem or self.error_message}). "
                "See its raw_fields, send what was meant, and purge the letter"
            )
        if self.partition is None or (self.group is None and not to_all_groups):
            raise self.refusal("it lacks its partition and group")
        # For all groups it is a new message: to those that have handled its original, too.
        is_new = to_all_groups and self.envelope.id
        return self.envelope.copied(
            id=new_id() if is_new else self.envelope.id,
            attempt=0,
            failure=None,
            original_id=self.original_id,
            replayed_from=self.id,
            for_group=None if to_all_groups else self.group,
        )

    def refusal(self, reason: str) -> TopicError:
        """The error of a replay that cannot be."""
        return TopicError(self.topic, f"cannot replay its dead letter {self.id}: {reason}")


def _decoded(fields: Any) -> RawFields:
    try:
        return tuple((base64.b64decode(name), base64.b64decode(value)) for name, value in fields)
    except (TypeError, ValueError, binascii.Error):
        return ((b"fieldsBase64", repr(fields).encode()),)
