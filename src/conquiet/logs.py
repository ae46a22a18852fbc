"""Log lines that name their message: as attributes of each record, and as one JSON object per line."""

from __future__ import annotations

import json
import logging
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from conquiet.masking import mask

#: What is known of a record about a message, `None` where there is nothing to say.
FIELDS = ("topic", "stream", "partition", "group", "message_id", "consumer", "trace_id", "span_id")

#: The one attribute of our records that holds them: an application's record factory may use the bare names,
#: and `logging` refuses an `extra` that would overwrite anything.
ATTRIBUTE = "conquiet"


class MessageLog(logging.LoggerAdapter[logging.Logger]):
    """A logger for lines about messages, whose fate does not hang on whether it can be told."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log; what the factory, filters or handlers of the application raise is told on stderr."""
        try:
            self.logger.log(level, msg, *args, **kwargs | {"stacklevel": kwargs.get("stacklevel", 1) + 1})
        except Exception:  # noqa: BLE001 -- the application's; it must not decide about a message
            if logging.raiseExceptions and sys.stderr:
                print(f"--- conquiet could not log {msg!r} ---", file=sys.stderr)
                traceback.print_exc(file=sys.stderr)


class Delivered(Protocol):
    """A message of the plain queue or of the MQ."""

    @property
    def stream(self) -> str:
        """The stream's key."""

    @property
    def group(self) -> str:
        """The consumer group."""

    @property
    def id(self) -> str:
        """The stream entry's id."""


class Handling(Protocol):
    """Whoever hands messages to a handler, one after the other."""

    #: The one that is in the handler now.
    handled: Any
    consumer: str


#: Who handles in this thread; set once for many messages, as a context variable for each would cost too much.
_thread = threading.local()


@contextmanager
def naming_messages_of(handling: Handling) -> Iterator[None]:
    """Let whatever is logged in this thread name the message that is in the handler."""
    before = getattr(_thread, "handling", None)
    _thread.handling = handling
    try:
        yield
    finally:
        _thread.handling = before


def message_fields(msg: Delivered | None = None, /, *, context: Any = None, **facts: Any) -> dict[str, Any]:
    """What a log call hands over as `extra`.

    Args:
        msg: the message that the line is about.
        context: the OpenTelemetry context of its handling; without one, the current.
        facts: others of `FIELDS`.
    """
    found: dict[str, Any] = dict.fromkeys(FIELDS)
    if msg is not None:
        found |= _facts_of(msg)
    found |= facts
    return {ATTRIBUTE: found | _trace_of(context)}


class MessageFilter(logging.Filter):
    """Gives every record the `FIELDS` that it does not have, of the message that is being handled."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add attributes; keeps every record."""
        known = _ambient_facts() | _told_by(record)
        for name in FIELDS:
            if getattr(record, name, None) is None:
                setattr(record, name, known.get(name))
        return True


class MaskedFormatter(logging.Formatter):
    """Log lines with their tracebacks, without passwords."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        return mask(super().format(record))


class JsonFormatter(logging.Formatter):
    """One JSON object per line; what a handler logs by itself names its message too."""

    def format(self, record: logging.LogRecord) -> str:
        """The object; keys without a value are left out, passwords are masked."""
        own = {name: value for name in FIELDS if (value := getattr(record, name, None)) is not None}
        values: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        values |= _ambient_facts() | own | _told_by(record)
        values |= {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}
        if record.exc_info:
            values["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            values["stack"] = self.formatStack(record.stack_info)
        told = {name: _masked(value) for name, value in values.items() if value is not None}
        return json.dumps(told, ensure_ascii=False, default=_shown)


#: Attributes of records that are no `extra`, and what is told under other names.
_OF_EVERY_RECORD = frozenset((*vars(logging.makeLogRecord({})), *FIELDS, ATTRIBUTE)) | {
    "message",
    "asctime",
    "taskName",
    "otelSpanID",
    "otelTraceID",
}


def about(msg: Delivered, consumer: str) -> AbstractContextManager[None]:
    """Let whatever is logged inside name this message, as in a loop of one's own."""
    return naming_messages_of(_OneMessage(msg, consumer))


@dataclass(slots=True)
class _OneMessage:
    handled: Delivered | None
    consumer: str


def _facts_of(msg: Delivered) -> dict[str, Any]:
    return {
        "topic": getattr(msg, "topic", None),
        "stream": msg.stream,
        "partition": getattr(msg, "partition", None),
        "group": msg.group,
        "message_id": msg.id,
    }


def _told_by(record: logging.LogRecord) -> dict[str, Any]:
    told = getattr(record, ATTRIBUTE, None)
    # Somebody else's attribute of that name is no mapping of ours.
    if not isinstance(told, Mapping):
        return {}
    return {name: value for name in FIELDS if (value := told.get(name)) is not None}


def _ambient_facts() -> dict[str, Any]:
    handling: Handling | None = getattr(_thread, "handling", None)
    if handling is None or handling.handled is None:
        return _trace_of(None)
    return _facts_of(handling.handled) | {"consumer": handling.consumer} | _trace_of(None)


def _trace_of(context: Any) -> dict[str, Any]:
    # Also an application's own spans: they are there only where it has loaded OpenTelemetry.
    if "opentelemetry.trace" not in sys.modules:
        return {}
    from conquiet.tracing.spans import trace_ids

    found = trace_ids(context)
    return {} if found is None else {"trace_id": found[0], "span_id": found[1]}


def _masked(value: Any) -> Any:
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, Mapping):
        return {str(name): _masked(inner) for name, inner in value.items()}
    return [_masked(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _shown(value: object) -> str:
    return mask(str(value))
