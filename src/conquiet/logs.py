"""Log lines that name their message: as attributes of each record, and as one JSON object per line."""

from __future__ import annotations

import json
import logging
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from conquiet.masking import mask

#: What a record about a message has, `None` where unknown; the last five are of tasks and of traces.
FIELDS = (
    *("topic", "stream", "partition", "group", "message_id", "consumer"),
    *("task", "queue", "attempt", "trace_id", "span_id"),
)

#: The one attribute of our records that has them: an application's record factory may use the bare names,
#: and `logging` refuses an `extra` that would overwrite anything.
ATTRIBUTE = "conquiet"


class MessageLog(logging.LoggerAdapter[logging.Logger]):
    """A logger for lines about messages; errors of the application's logging do not affect them."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log; what the factory, filters or handlers of the application raise is printed to stderr."""
        try:
            self.logger.log(level, msg, *args, **kwargs | {"stacklevel": kwargs.get("stacklevel", 1) + 1})
        except Exception:  # noqa: BLE001 -- the application's
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
    """A loop that calls a handler with one message after the other."""

    @property
    def in_handler(self) -> Any:
        """The message that is in the handler now."""

    @property
    def consumer(self) -> str:
        """Its name."""


@dataclass(frozen=True, slots=True)
class _SingleHandling:
    """The handling of one message, without a loop."""

    in_handler: Any
    consumer: str


#: The loop of this thread; set once for many messages, as a context variable for each would cost too much.
_thread = threading.local()


#: In an event loop's thread, that of the current task; a task begins with that of the thread that started it.
_of_task: ContextVar[Handling | None] = ContextVar("conquiet_handling", default=None)


class _HandlingOfTask:
    """The handling of whatever task is current."""

    @property
    def in_handler(self) -> Any:
        handling = _of_task.get()
        return None if handling is None else handling.in_handler

    @property
    def consumer(self) -> str:
        handling = _of_task.get()
        return "" if handling is None else handling.consumer


@contextmanager
def naming_messages_of(handling: Handling) -> Iterator[None]:
    """Make every record of this thread name the message that is in the handler."""
    before, token = getattr(_thread, "handling", None), _of_task.set(handling)
    _thread.handling = handling
    try:
        yield
    finally:
        _thread.handling = before
        _of_task.reset(token)


@contextmanager
def naming_messages_of_tasks() -> Iterator[None]:
    """As above in the thread of an event loop, where each task has messages of its own."""
    _thread.handling = _HandlingOfTask()
    try:
        yield
    finally:
        _thread.handling = None


def name_messages_in_task(handling: Handling) -> None:
    """Make every record of the current task name the message that is in the handler."""
    _of_task.set(handling)


def message_fields(msg: Delivered | None = None, /, *, context: Any = None, **facts: Any) -> dict[str, Any]:
    """The `extra` of a log call.

    Args:
        msg: the message that the line is about.
        context: the OpenTelemetry context of its handling; without one, the current.
        facts: others of `FIELDS`.
    """
    known: dict[str, Any] = dict.fromkeys(FIELDS)
    if msg is not None:
        known |= _facts_of(msg)
    return {ATTRIBUTE: known | facts | _trace_of(context)}


@contextmanager
def hiding_error_texts() -> Iterator[None]:
    """Log failed messages of this thread with the types of their errors alone: a text may quote a payload."""
    before = are_error_texts_hidden()
    _thread.hides_error_texts = True
    try:
        yield
    finally:
        _thread.hides_error_texts = before


def are_error_texts_hidden() -> bool:
    """Whether texts of handlers' errors must not be in the log."""
    return getattr(_thread, "hides_error_texts", False)


class MessageFilter(logging.Filter):
    """Gives every record the `FIELDS` that it does not have, of the message that is being handled."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add attributes; keeps every record."""
        known = _current_facts() | _facts_in(record)
        for name in FIELDS:
            if getattr(record, name, None) is None:
                setattr(record, name, known.get(name))
        return True


class MaskedFormatter(logging.Formatter):
    """Log lines with their tracebacks, without passwords."""

    def format(self, record: logging.LogRecord) -> str:
        return mask(super().format(record))


class JsonFormatter(logging.Formatter):
    """One JSON object per line; what a handler logs itself names its message, too.

    Examples:
        >>> import logging
        >>> record = logging.makeLogRecord({"levelname": "INFO", "msg": "at redis://:hunter22@shop:6379"})
        >>> print(JsonFormatter().format(record))
        {"time": "...", "level": "info", ..."message": "at redis://:***@shop:6379"...}
    """

    def format(self, record: logging.LogRecord) -> str:
        """The object; keys without a value are left out, passwords are masked."""
        own = {name: value for name in FIELDS if (value := getattr(record, name, None)) is not None}
        values: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        values |= _current_facts() | own | _facts_in(record)
        values |= {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}
        if record.exc_info:
            values["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            values["stack"] = self.formatStack(record.stack_info)
        masked = {name: _masked(value) for name, value in values.items() if value is not None}
        return json.dumps(masked, ensure_ascii=False, default=lambda value: mask(str(value)))


#: Attributes of records that are not an `extra`, and what has another name in the JSON.
_OF_EVERY_RECORD = frozenset((*vars(logging.makeLogRecord({})), *FIELDS, ATTRIBUTE)) | {
    "message",
    "asctime",
    "taskName",
    "otelSpanID",
    "otelTraceID",
}


def log_to_stderr(level: str, log_format: str) -> None:
    """Log everything from this level on to stderr, as text or as JSON; for a process of our own.

    Debug is for conquiet alone, others begin with info: redis-py would log every command.
    """
    handler = logging.StreamHandler()
    text = MaskedFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if log_format == "json" else text)
    is_debug = level == "debug"
    logging.basicConfig(level="INFO" if is_debug else level.upper(), handlers=[handler], force=True)
    logging.getLogger("conquiet").setLevel(logging.DEBUG if is_debug else logging.NOTSET)


def about(msg: Delivered, consumer: str) -> AbstractContextManager[None]:
    """Make every record in the block name this message; for a loop of your own."""
    return naming_messages_of(_SingleHandling(msg, consumer))


def _facts_of(msg: Delivered) -> dict[str, Any]:
    return {
        "topic": getattr(msg, "topic", None),
        "stream": msg.stream,
        "partition": getattr(msg, "partition", None),
        "group": msg.group,
        "message_id": msg.id,
    } | getattr(msg, "log_fields", {})


def _facts_in(record: logging.LogRecord) -> dict[str, Any]:
    facts = getattr(record, ATTRIBUTE, None)
    # Another library's attribute of that name need not be a mapping.
    if not isinstance(facts, Mapping):
        return {}
    return {name: value for name in FIELDS if (value := facts.get(name)) is not None}


def _current_facts() -> dict[str, Any]:
    handling: Handling | None = getattr(_thread, "handling", None)
    if handling is None or (msg := handling.in_handler) is None:
        return _trace_of(None)
    return _facts_of(msg) | {"consumer": handling.consumer} | _trace_of(None)


def _trace_of(context: Any) -> dict[str, Any]:
    # Also of an application's own spans, which exist only where it has loaded OpenTelemetry.
    if "opentelemetry.trace" not in sys.modules:
        return {}
    from conquiet.tracing.spans import trace_ids

    ids = trace_ids(context)
    return {} if ids is None else {"trace_id": ids[0], "span_id": ids[1]}


def _masked(value: Any) -> Any:
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, Mapping):
        return {str(name): _masked(inner) for name, inner in value.items()}
    return [_masked(inner) for inner in value] if isinstance(value, (list, tuple)) else value
