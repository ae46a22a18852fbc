"""The envelope: what the MQ puts around a payload, as one JSON object in the entry's `data`."""

from __future__ import annotations

import itertools
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, make_dataclass, replace
from typing import Any, Generic, Self

from conquiet.payload import Payload, decode_payload, encode_payload, encode_text
from conquiet.queue import QueueMessage
from conquiet.queue.message import P

SCHEMA_VERSION = 1
#: The most that a message may ask for as its own `max_retries`; of more, consumers grant these.
MAX_RETRIES = 1_000

#: What the fields of an envelope are, unless they are null; by their names on the wire.
_KINDS: dict[str, type | tuple[type, ...]] = {
    "id": str,
    "key": str,
    "headers": dict,
    "timestamp": (int, float),
    "attempt": int,
    "maxRetries": int,
    "originalMessageId": str,
    "replayedFrom": str,
    "forGroup": str,
    "failure": dict,
}
#: What this version writes; anything else in an envelope is a later version's, and carried on.
_NAMES = frozenset((*_KINDS, "schemaVersion", "topic", "partitionId", "payload"))


class LaterVersionError(ValueError):
    """An envelope of a later schema version: not malformed, but for a consumer of that version."""

    def __init__(self, version: int) -> None:
        super().__init__(
            f"its envelope has schema version {version}, this conquiet reads up to {SCHEMA_VERSION}"
        )


class _Ids:
    """Unique names: random for each process, then counted; a uuid each would cost as much as the JSON."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(10)
        self._numbers = itertools.count()

    def __call__(self) -> str:
        return f"{self._prefix}-{next(self._numbers):x}"


new_id = _Ids()
# A forked child must not go on with its parent's names.
os.register_at_fork(after_in_child=new_id.__init__)  # type: ignore[misc]


# Not frozen, as one is made for every message sent and read: that would triple what it costs.
@dataclass(slots=True, kw_only=True)
class Envelope:
    """One message as it is written; field names on the wire are those of document 002.

    Examples:
        >>> import json
        >>> envelope = Envelope(topic="shipments", partition=0, payload={"order_id": 7}, key="ann")
        >>> json.loads(envelope.encode())["payload"]
        {'order_id': 7}
    """

    topic: str
    payload: Payload
    partition: int
    id: str = field(default_factory=lambda: new_id())
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timestamp_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    #: Attempts before this entry was added: above 0 only for a copy that was re-enqueued or replayed.
    attempt: int = 0
    max_retries: int | None = None
    #: The entry that this one is a copy of.
    original_id: str | None = None
    #: The dead letter that this one was replayed from.
    replayed_from: str | None = None
    #: The only group that a re-enqueued copy is for.
    for_group: str | None = None
    #: What is remembered of the attempts before a re-enqueued copy.
    failure: Mapping[str, Any] | None = None
    #: Fields of a later version, for what is written again; see `of`.
    unknown: Mapping[str, Any] | None = None

    def encode(self) -> bytes:
        """The entry's data; refuses what would not come back equal."""
        copied = (self.max_retries, self.original_id, self.replayed_from, self.for_group, self.failure)
        is_new = self.attempt == 0 and copied == (None, None, None, None, None) and not self.unknown
        # Other programs may send a fraction.
        if is_new and type(self.timestamp_ms) is int:
            # By hand for what is sent for the first time, in the same order as below: a dict of all fields
            # takes nearly as long to check and encode as the payload in it.
            headers = encode_payload(dict(self.headers)).decode() if self.headers else "{}"
            before_payload = (
                f'{{"schemaVersion":{SCHEMA_VERSION},"id":{encode_text(self.id)},'
                f'"topic":{encode_text(self.topic)},"partitionId":{self.partition:d},'
                f'"key":{encode_text(self.key)},"headers":{headers},"timestamp":{self.timestamp_ms:d},'
                '"attempt":0,"maxRetries":null,"originalMessageId":null,"replayedFrom":null,"forGroup":null,'
                '"payload":'
            )
            return encode_payload(self.payload, before_payload, "}")
        carried = {} if self.failure is None else {"failure": dict(self.failure)}
        return encode_payload(
            {
                "schemaVersion": SCHEMA_VERSION,
                "id": self.id,
                "topic": self.topic,
                "partitionId": self.partition,
                "key": self.key,
                "headers": dict(self.headers),
                "timestamp": self.timestamp_ms,
                "attempt": self.attempt,
                "maxRetries": self.max_retries,
                "originalMessageId": self.original_id,
                "replayedFrom": self.replayed_from,
                "forGroup": self.for_group,
                **carried,
                **(self.unknown or {}),
                "payload": self.payload,
            }
        )

    @classmethod
    def of(
        cls,
        data: Payload,
        *,
        topic: str,
        partition: int,
        is_bare: bool = False,
        keeps_unknown: bool = False,
    ) -> Self:
        """The envelope in an entry; an entry of the plain queue is a payload without one.

        Args:
            is_bare: of a plain stream, whose payloads may look like an envelope: then only one that was
                written to this very stream is one.
            keeps_unknown: it will be written again, with the fields that this version does not know.
        """
        if not _has_envelope(data, topic if is_bare else None):
            return cls(topic=topic, partition=partition, payload=data, id="", timestamp_ms=0)
        return cls(
            topic=topic,
            partition=partition,
            payload=data["payload"],
            id=data.get("id") or "",
            key=data.get("key"),
            headers=data.get("headers") or {},
            timestamp_ms=data.get("timestamp") or 0,
            attempt=data.get("attempt") or 0,
            max_retries=data.get("maxRetries"),
            original_id=data.get("originalMessageId"),
            replayed_from=data.get("replayedFrom"),
            for_group=data.get("forGroup"),
            failure=data.get("failure"),
            unknown={name: data[name] for name in data.keys() - _NAMES} or None if keeps_unknown else None,
        )

    def copied(self, **changes: Any) -> Envelope:
        """The same message with other facts of delivery."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class MqMessage(Generic[P]):
    """One delivery of one message to one group.

    What a handler changes in its payload, headers or envelope is in no retry, copy or dead letter of it.

    Examples:
        >>> def show(msg, session):
        ...     print(msg.key, msg.payload["order_id"], msg.partition, msg.attempt)
    """

    topic: str
    group: str
    partition: int
    #: The stream entry's id.
    id: str
    #: Deliveries so far, this one included; what died on the way counts too.
    attempt: int
    envelope: Envelope
    #: What Redis counted for this entry; the fence of its settlement.
    delivery_count: int
    #: The partition's stream key.
    stream: str
    #: The entry's data as it came, for what cannot be written again as it was read.
    data: bytes = field(default=b"", repr=False)
    #: What Redis kept of its earlier failures.
    failure: bytes = field(default=b"", repr=False, compare=False)
    #: Whether Redis has counted this delivery; else it does so when the handler begins.
    is_counted: bool = field(default=True, repr=False, compare=False)
    #: Of the envelope, in which a handler may change them: when it was sent, or 0, and its id, or empty.
    sent_ms: int = field(default=0, repr=False, compare=False)
    sent_id: str = field(default="", repr=False, compare=False)

    def count(self) -> None:
        """Redis counts this delivery now."""
        object.__setattr__(self, "is_counted", True)

    @property
    def source(self) -> QueueMessage:
        """The same delivery as the plain queue sees it, built at each call."""
        return QueueMessage(self.stream, self.group, self.id, decode_payload(self.data), self.delivery_count)

    def as_delivered(self) -> Self:
        """The message without what its handler changed in it."""
        envelope = Envelope.of(
            decode_payload(self.data),
            topic=self.topic,
            partition=self.partition,
            is_bare=self.stream == self.topic,
            keeps_unknown=True,
        )
        return replace(self, envelope=envelope)

    @property
    def is_loaded(self) -> bool:
        """Whether its content is in memory."""
        return bool(self.data)

    def unloaded(self) -> Self:
        """The message without its payload, which the stream still has."""
        return replace(self, data=b"", envelope=replace(self.envelope, payload={}))

    @property
    def identity(self) -> tuple[str, str]:
        """By which the inbox knows it: the topic and its envelope's id, the same for every copy of it."""
        if self.sent_id:
            return self.topic, self.sent_id
        # What the plain queue has added has no envelope.
        return QueueMessage(self.stream, self.group, self.id, {}, data=self.data).identity

    @property
    def original_id(self) -> str:
        """Its entry: of a copy for this group the one that it was made from."""
        return (self.envelope.original_id or self.id) if self.envelope.for_group is not None else self.id

    @property
    def payload(self) -> P:
        payload: Any = self.envelope.payload
        return payload  # type: ignore[no-any-return]  # of the type that the consumer names

    def with_payload(self, payload: Any) -> MqMessage[Any]:
        """The same delivery with its payload as a value of a type."""
        return replace(self, envelope=replace(self.envelope, payload=payload))

    @property
    def key(self) -> str | None:
        return self.envelope.key

    @property
    def headers(self) -> Mapping[str, str]:
        return self.envelope.headers


#: Its fields, not frozen: one is made for every message, and a frozen dataclass sets each field by a call of
#: its own, which takes twice as long. What was made becomes a message by its `__class__`.
MessageDraft = make_dataclass(
    "MessageDraft",
    [(one.name, one.type, field(default=one.default)) for one in fields(MqMessage)],
    bases=MqMessage.__orig_bases__,  # type: ignore[attr-defined]  # else their layouts differ
    slots=True,
    kw_only=True,
)


def check_envelope(data: Payload, *, bare_stream: str | None = None) -> None:
    """Refuse an envelope whose fields are not what they should be; a payload without one is fine.

    Args:
        bare_stream: the plain stream that it was read from, `None` for a topic.

    Raises:
        LaterVersionError: it is of a later schema version.
        ValueError: the sentence names the field.
    """
    if bare_stream is not None and not _names_stream(data, bare_stream):
        return
    version = data.get("schemaVersion")
    if type(version) is int and version > SCHEMA_VERSION and "payload" in data:
        raise LaterVersionError(version)
    if not _has_envelope(data, bare_stream):
        return
    for name, kind in _KINDS.items():
        value = data.get(name)
        if value is not None and not isinstance(value, kind):
            raise ValueError(f"{name!r} of its envelope cannot be {value!r:.100}")


def _has_envelope(data: Payload, bare_stream: str | None) -> bool:
    is_like_one = data.get("schemaVersion") == SCHEMA_VERSION and isinstance(data.get("payload"), dict)
    return is_like_one and (bare_stream is None or _names_stream(data, bare_stream))


def _names_stream(data: Payload, stream: str) -> bool:
    # Every envelope names its topic; no payload has a reason to name the stream that it is sent to, so.
    is_ours = data.get("topic") == stream and data.get("partitionId") == 0 and isinstance(data.get("id"), str)
    return is_ours and "forGroup" in data and "replayedFrom" in data
