"""Message: one message to send to a topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from conquiet.arguments import check_name, check_non_negative_int
from conquiet.mq.envelope import MAX_RETRIES
from conquiet.payload import Payload, PayloadCodec, Sendable, as_json_object


# Not frozen, as one is made for every message sent: that would double what it costs.
@dataclass(slots=True, kw_only=True)
class Message:
    """One message to send.

    Examples:
        >>> messages = [Message(payload={"order_id": n}, key=str(n)) for n in range(3)]
        >>> len(Producer(client).send_many("shipments", messages))
        3
    """

    payload: Sendable
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    partition: int | None = None
    #: How often it is tried again at most, up to 1,000, whatever the consumers' policy says; `None` leaves it
    #: to them.
    max_retries: int | None = None
    #: Within the producer's window a second message with this id is not added to the partition.
    dedupe_id: str | None = None

    def __post_init__(self) -> None:
        if self.key is not None and not isinstance(self.key, str):
            raise TypeError(f"key must be a str or None, got {self.key!r}")
        if self.dedupe_id is not None:
            check_name("dedupe_id", self.dedupe_id)
        if self.max_retries is not None:
            check_non_negative_int("max_retries", self.max_retries)
            if self.max_retries > MAX_RETRIES:
                raise ValueError(f"max_retries must be at most {MAX_RETRIES}, got {self.max_retries!r}")
        for name, value in self.headers.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise TypeError(f"headers must be strings, got {name!r}: {value!r:.100}")

    def json_object(self, codec: PayloadCodec | None) -> Payload:
        """What is sent of its payload."""
        written = as_json_object(self.payload, codec)
        if not isinstance(written, dict):
            raise TypeError(f"payload must be a dict, not {type(written).__name__}: {written!r:.100}")
        return written

    def with_headers(self, headers: Mapping[str, str]) -> Message:
        """A copy with more headers, also over those that a handler passes on: the trace goes on from here."""
        return replace(self, headers={**self.headers, **headers})
