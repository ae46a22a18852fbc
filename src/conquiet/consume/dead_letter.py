"""Dead letters: the record of a message that will not be tried again by itself, for streams and topics."""

from __future__ import annotations

import base64
import json
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from conquiet.errors import MalformedEntry
from conquiet.masking import mask
from conquiet.payload import decode_payload, encode_payload
from conquiet.queue import QueueMessage
from conquiet.queue.connection import key_beside

#: Of the record; a later one may have other fields, which readers leave out.
LETTER_VERSION = 1

_MAX_TRACEBACK = 8_000
_MAX_TEXT = 1_000


def dead_letter_stream(stream: str) -> str:
    """The dead letters of a plain stream, in the same slot of a Redis Cluster."""
    return key_beside(stream, "dlq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a message is given up."""

    error_type: str
    message: str
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Cause:
        """An exception, without passwords."""
        kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
        trace = mask("".join(traceback.format_exception(error)))[-_MAX_TRACEBACK:]
        try:
            message = mask(str(error))
        except Exception:  # noqa: BLE001 -- the user's; the traceback has the rest
            message = "<its str() failed>"
        return cls(error_type=kind, message=writable(message), traceback=writable(trace))


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """One message that is given up: where it was, how often and by whom it was tried."""

    #: The stream's key for a plain stream.
    topic: str
    group: str
    partition: int = 0
    key: str | None = None
    original_id: str
    attempts: int
    consumer: str
    now_ms: int
    first_delivered_at_ms: int | None = None

    def letter(self, cause: Cause, content: Mapping[str, Any]) -> str:
        """The dead letter as JSON; `content` is what was sent, see `message_content` and `raw_content`."""
        return json.dumps(
            {
                "schemaVersion": LETTER_VERSION,
                "topic": self.topic,
                "group": self.group,
                "partition": self.partition,
                "key": self.key,
                "originalMessageId": self.original_id,
                "attempts": self.attempts,
                "firstDeliveredAt": self.first_delivered_at_ms,
                "lastDeliveredAt": self.now_ms,
                "deadLetteredAt": self.now_ms,
                "lastConsumer": self.consumer,
                "errorType": cause.error_type,
                "errorMessage": short_text(cause.message),
                "traceback": cause.traceback,
                **content,
            }
        )


def message_content(msg: QueueMessage) -> dict[str, Any]:
    """What a message of a plain stream was, in the members that a topic's message has."""

    def content() -> dict[str, Any]:
        # Not `msg.payload`: its handler may have changed it.
        payload = decode_payload(msg.data)
        envelope = {"schemaVersion": 1, "payload": payload}
        return {"headers": {}, **as_read(msg.data, encode_payload(payload)), "envelope": envelope}

    return writable_content(content, msg.data)


def writable_content(content: Callable[[], dict[str, Any]], data: bytes) -> dict[str, Any]:
    """What a message was, or its bytes as they came, if it can be read here or written no more.

    As a lone surrogate, or what is nested so deeply that it depends on the depth of the stack.
    """
    try:
        found = content()
        # A little deeper than in the letter.
        json.dumps([[[found]]]).encode()
    except (TypeError, ValueError, RecursionError):
        return raw_content([(b"data", data)])
    return found


def as_read(data: bytes, *written: bytes) -> dict[str, str]:
    """The data of an entry, unless it is one of these: then it can be made again from the letter."""
    # Spaces, the form of numbers and names that come twice are lost with the bytes.
    return {} if data in written else {"data": data.decode()}


def malformed_content(entry: MalformedEntry) -> tuple[Cause, dict[str, Any]]:
    """Why an entry is malformed, and its fields."""
    return Cause(error_type="Malformed", message=entry.reason), raw_content(entry.fields)


def raw_content(fields: Any) -> dict[str, Any]:
    """The fields of an entry as they came: raw bytes need not be text."""
    encoded = [[base64.b64encode(part).decode() for part in pair] for pair in fields]
    return {"headers": {}, "fieldsBase64": encoded}


def short_text(message: str) -> str:
    """A message as it is kept."""
    return writable(message[:_MAX_TEXT])


def writable(text: str) -> str:
    """The text without lone surrogates, as of a file name that is not UTF-8: a reader would refuse them."""
    return text.encode(errors="backslashreplace").decode()
