"""What a queue needs to know: one stream, one consumer group, one consumer."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """Names and limits of one queue, checked once when it is made."""

    #: The key of the Redis stream.
    stream_key: str
    #: The consumer group; created at the start of the stream if it is not there.
    consumer_group: str
    #: Unique among the processes that are alive; `unique_consumer_name()` makes one.
    consumer_name: str
    #: How long a read waits for a message.
    block_ms: int = 5_000
    #: How many messages a consumer may hold at a time; `QueueConsumer` needs 1.
    max_read_count: int = 1
    #: How long a message must have been idle before it counts as stale.
    claim_idle_ms: int = 60_000

    def __post_init__(self) -> None:
        for name in ("stream_key", "consumer_group", "consumer_name"):
            check_name(name, getattr(self, name))
        for name in ("block_ms", "max_read_count", "claim_idle_ms"):
            check_positive_int(name, getattr(self, name))


def check_name(argument: str, value: object) -> None:
    """Refuse what is no usable Redis name: not a string, empty, or not UTF-8."""
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be a str, not {value!r}")
    if not value:
        raise ValueError(f"{argument} must not be empty, got {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{argument} has a lone surrogate, which UTF-8 cannot carry: {value!r}") from error


def check_positive_int(argument: str, value: object) -> None:
    """Refuse everything but an int above zero; `True` is no number here."""
    _check_int(argument, value)
    if value <= 0:  # type: ignore[operator]  # an int since the line above
        raise ValueError(f"{argument} must be a positive int, got {value!r}")


def check_non_negative_int(argument: str, value: object) -> None:
    """Refuse everything but an int of zero or more; `True` is no number here."""
    _check_int(argument, value)
    if value < 0:  # type: ignore[operator]  # an int since the line above
        raise ValueError(f"{argument} must be zero or a positive int, got {value!r}")


def unique_consumer_name(prefix: str = "") -> str:
    """A short name that no other live process has: host, pid and six random hex digits."""
    host = socket.gethostname().split(".")[0][:20] or "host"
    name = f"{host}-{os.getpid()}-{secrets.token_hex(3)}"
    return f"{prefix}-{name}" if prefix else name


def _check_int(argument: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{argument} must be an int, got {value!r}")
