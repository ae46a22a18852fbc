"""A message as a handler gets it, and how stream entries become messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, overload
from zlib import crc32

from conquiet.errors import MalformedEntry, MalformedEntryError
from conquiet.payload import Payload, decode_payload

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    P = TypeVar("P", default=Payload)
else:
    from typing import TypeVar

    P = TypeVar("P")

#: One entry of a redis-py reply: the id and either a flat list of names and values or a mapping.
RawEntry = tuple[bytes, "Sequence[bytes] | Mapping[bytes, bytes]"]


_ENTRY_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")
#: Some of what every envelope of the MQ has.
_ENVELOPE = {"id", "topic", "partitionId", "forGroup", "replayedFrom", "payload"}


@dataclass(frozen=True, slots=True)
class QueueMessage(Generic[P]):
    """One delivery of one stream entry; it stays pending in its group until it is acked.

    For handlers of `drain(…, payload=Order)` it is a `QueueMessage[Order]`; else its payload is a dict.

    Examples:
        >>> def show(msg, session):
        ...     print(msg.id, msg.payload["order_id"], msg.attempt)
    """

    stream: str
    group: str
    id: str
    payload: P
    #: 1 on the first delivery; Redis counts each read and claim.
    delivery_count: int = 1
    #: The entry's data as it came.
    data: bytes = field(default=b"{}", repr=False, compare=False)

    if TYPE_CHECKING:
        # Of any dict the type is that of a dict: a checker would ask what is in an empty one.
        @overload
        def __init__(
            self: QueueMessage[Payload],
            stream: str,
            group: str,
            id: str,
            payload: Payload,
            delivery_count: int = ...,
            data: bytes = ...,
        ) -> None: ...

        @overload
        def __init__(
            self,
            stream: str,
            group: str,
            id: str,
            payload: P,
            delivery_count: int = ...,
            data: bytes = ...,
        ) -> None: ...

        def __init__(self, *fields: Any, **named: Any) -> None: ...

    @property
    def attempt(self) -> int:
        """Deliveries so far, this one included."""
        return self.delivery_count

    def with_payload(self, payload: Any) -> QueueMessage[Any]:
        """The same delivery with its payload as a value of a type."""
        return replace(self, payload=payload)

    @property
    def identity(self) -> tuple[str, str]:
        """By which the inbox knows it: the stream, and the entry's id with a checksum of its data.

        Of a message with an envelope, which is in a partition of a topic, its topic and the envelope's id.
        """
        if self.data.startswith(b'{"schemaVersion":'):
            envelope = decode_payload(self.data)
            if envelope.keys() >= _ENVELOPE and envelope["id"]:
                return str(envelope["topic"]), str(envelope["id"])
        # After a failover a new message may have the id of one that was lost.
        return self.stream, f"{self.id}:{len(self.data)}:{crc32(self.data):x}"


@dataclass(frozen=True, slots=True)
class Delivery:
    """What one read or claim delivered; all of it is pending now, the malformed entries too."""

    messages: list[QueueMessage]
    malformed: list[MalformedEntry]

    def __len__(self) -> int:
        return len(self.messages) + len(self.malformed)

    def messages_or_raise(self, operation: str, *, stream: str, group: str) -> list[QueueMessage]:
        """The messages.

        Raises:
            MalformedEntryError: some entry is malformed; the error carries the messages of all the others.
        """
        if self.malformed:
            raise MalformedEntryError(
                operation, stream=stream, group=group, entries=self.malformed, messages=self.messages
            )
        return self.messages


def is_entry_id(text: str) -> bool:
    """Whether it is an id as Redis gives them: what is read back from another key may be anything."""
    return _ENTRY_ID.fullmatch(text) is not None


def entry_id_order(entry_id: bytes | str) -> tuple[int, int]:
    """What entry ids are sorted by: as text, 9-0 would come after 10-0."""
    text = entry_id.decode() if isinstance(entry_id, bytes) else entry_id
    milliseconds, _, sequence = text.partition("-")
    return int(milliseconds), int(sequence)


def delivery_of(entries: Iterable[tuple[RawEntry, int]], *, stream: str, group: str) -> Delivery:
    """Sort entries, each with its delivery count, into messages and malformed ones."""
    delivery = Delivery([], [])
    for (raw_id, raw_fields), delivery_count in entries:
        entry_id = raw_id.decode()
        try:
            data = data_of(raw_fields)
            payload = decode_payload(data)
        except ValueError as error:
            delivery.malformed.append(
                MalformedEntry(entry_id, pairs_of(raw_fields), delivery_count, str(error))
            )
        else:
            delivery.messages.append(QueueMessage(stream, group, entry_id, payload, delivery_count, data))
    return delivery


def data_of(fields: Sequence[bytes] | Mapping[bytes, bytes]) -> bytes:
    """The one field of an entry.

    Raises:
        ValueError: it has others, or none.
    """
    # The hot path: a flat list of one name and one value.
    if isinstance(fields, list) and len(fields) == 2 and fields[0] == b"data":
        return fields[1]  # type: ignore[no-any-return]  # redis-py's replies are untyped
    pairs = pairs_of(fields)
    if len(pairs) != 1 or pairs[0][0] != b"data":
        names = ", ".join(repr(name) for name, _ in pairs[:5])
        raise ValueError(f"it must have exactly one field `data`, but has {len(pairs)}: {names}")
    return pairs[0][1]


def pairs_of(fields: Sequence[bytes] | Mapping[bytes, bytes]) -> tuple[tuple[bytes, bytes], ...]:
    """The fields of an entry, in order."""
    if isinstance(fields, Mapping):
        return tuple(fields.items())
    flat: Sequence[Any] = fields
    return tuple(zip(flat[::2], flat[1::2], strict=True))
