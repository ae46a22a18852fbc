"""Redis Streams queues where one message is one database transaction, acked only after its commit."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conquiet.consume import (
        Ack,
        DeadLetter,
        DrainLimits,
        DrainReport,
        OutboxRelay,
        QueueConsumer,
        Retry,
        drain,
        drain_stale,
        install_signal_handlers,
        load_handler,
        reference_to,
    )
    from conquiet.db import DbSession, Inbox, Outbox
    from conquiet.embedded import EmbeddedServer
    from conquiet.errors import (
        ConquietError,
        ConsumerBusyError,
        DatabaseUnavailableError,
        DbError,
        DrainError,
        DrainFailure,
        EmbeddedServerError,
        MalformedEntry,
        MalformedEntryError,
        MessageRejectedError,
        NotReplicatedError,
        QueueError,
    )
    from conquiet.queue import (
        BacklogStats,
        QueueConfig,
        QueueMessage,
        RedisStreamsQueue,
        StreamWriter,
        open_async_client,
        open_client,
        peek_backlog,
        peek_backlog_async,
        unique_consumer_name,
    )

__version__ = "0.1.0"

# Loaded on first use: `import conquiet` pays for neither SQLAlchemy nor redis-py.
_HOME_OF = {
    "Ack": "conquiet.consume",
    "BacklogStats": "conquiet.queue",
    "ConquietError": "conquiet.errors",
    "ConsumerBusyError": "conquiet.errors",
    "DatabaseUnavailableError": "conquiet.errors",
    "DbError": "conquiet.errors",
    "DbSession": "conquiet.db",
    "DeadLetter": "conquiet.consume",
    "DrainError": "conquiet.errors",
    "DrainFailure": "conquiet.errors",
    "DrainLimits": "conquiet.consume",
    "DrainReport": "conquiet.consume",
    "EmbeddedServer": "conquiet.embedded",
    "EmbeddedServerError": "conquiet.errors",
    "Inbox": "conquiet.db",
    "MalformedEntry": "conquiet.errors",
    "MalformedEntryError": "conquiet.errors",
    "MessageRejectedError": "conquiet.errors",
    "NotReplicatedError": "conquiet.errors",
    "Outbox": "conquiet.db",
    "OutboxRelay": "conquiet.consume",
    "QueueConfig": "conquiet.queue",
    "QueueConsumer": "conquiet.consume",
    "QueueError": "conquiet.errors",
    "QueueMessage": "conquiet.queue",
    "RedisStreamsQueue": "conquiet.queue",
    "Retry": "conquiet.consume",
    "StreamWriter": "conquiet.queue",
    "drain": "conquiet.consume",
    "drain_stale": "conquiet.consume",
    "install_signal_handlers": "conquiet.consume",
    "load_handler": "conquiet.consume",
    "open_async_client": "conquiet.queue",
    "open_client": "conquiet.queue",
    "peek_backlog": "conquiet.queue",
    "peek_backlog_async": "conquiet.queue",
    "reference_to": "conquiet.consume",
    "unique_consumer_name": "conquiet.queue",
}

__all__ = [
    "Ack",
    "BacklogStats",
    "ConquietError",
    "ConsumerBusyError",
    "DatabaseUnavailableError",
    "DbError",
    "DbSession",
    "DeadLetter",
    "DrainError",
    "DrainFailure",
    "DrainLimits",
    "DrainReport",
    "EmbeddedServer",
    "EmbeddedServerError",
    "Inbox",
    "MalformedEntry",
    "MalformedEntryError",
    "MessageRejectedError",
    "NotReplicatedError",
    "Outbox",
    "OutboxRelay",
    "QueueConfig",
    "QueueConsumer",
    "QueueError",
    "QueueMessage",
    "RedisStreamsQueue",
    "Retry",
    "StreamWriter",
    "drain",
    "drain_stale",
    "install_signal_handlers",
    "load_handler",
    "open_async_client",
    "open_client",
    "peek_backlog",
    "peek_backlog_async",
    "reference_to",
    "unique_consumer_name",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'conquiet' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
