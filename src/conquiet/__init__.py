"""Redis Streams queues where one message is one database transaction, acked only after its commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conquiet.exports import lazy_exports

if TYPE_CHECKING:
    from conquiet.consume import (
        Ack as Ack,
        DeadLetter as DeadLetter,
        DrainLimits as DrainLimits,
        DrainReport as DrainReport,
        OutboxRelay as OutboxRelay,
        QueueConsumer as QueueConsumer,
        Retry as Retry,
        batch_handler as batch_handler,
        drain as drain,
        drain_stale as drain_stale,
        install_signal_handlers as install_signal_handlers,
        load_handler as load_handler,
        reference_to as reference_to,
    )
    from conquiet.db import DbSession as DbSession, Inbox as Inbox, Outbox as Outbox
    from conquiet.embedded import EmbeddedServer as EmbeddedServer
    from conquiet.errors import (
        ConquietError as ConquietError,
        ConsumerBusyError as ConsumerBusyError,
        DatabaseUnavailableError as DatabaseUnavailableError,
        DbError as DbError,
        DrainError as DrainError,
        DrainFailure as DrainFailure,
        EmbeddedServerError as EmbeddedServerError,
        MalformedEntry as MalformedEntry,
        MalformedEntryError as MalformedEntryError,
        MessageRejectedError as MessageRejectedError,
        NoConnectionError as NoConnectionError,
        NotReplicatedError as NotReplicatedError,
        PayloadTypeError as PayloadTypeError,
        QueueError as QueueError,
    )
    from conquiet.payload import PayloadCodec as PayloadCodec, StandardCodec as StandardCodec
    from conquiet.queue import (
        AsyncQueue as AsyncQueue,
        BacklogStats as BacklogStats,
        QueueConfig as QueueConfig,
        QueueMessage as QueueMessage,
        RedisStreamsQueue as RedisStreamsQueue,
        StreamWriter as StreamWriter,
        open_async_client as open_async_client,
        open_client as open_client,
        peek_backlog as peek_backlog,
        peek_backlog_async as peek_backlog_async,
        unique_consumer_name as unique_consumer_name,
    )

__version__ = "0.1.0"

# On first use: `import conquiet` pays for neither SQLAlchemy nor redis-py.
_NAMES_OF = {
    "consume": (
        "Ack DeadLetter DrainLimits DrainReport OutboxRelay QueueConsumer Retry batch_handler drain "
        "drain_stale install_signal_handlers load_handler reference_to"
    ),
    "db": "DbSession Inbox Outbox",
    "embedded": "EmbeddedServer",
    "errors": (
        "ConquietError ConsumerBusyError DatabaseUnavailableError DbError DrainError DrainFailure "
        "EmbeddedServerError MalformedEntry MalformedEntryError MessageRejectedError "
        "NoConnectionError NotReplicatedError PayloadTypeError QueueError"
    ),
    "payload": "PayloadCodec StandardCodec",
    "queue": (
        "AsyncQueue BacklogStats QueueConfig QueueMessage RedisStreamsQueue StreamWriter open_async_client "
        "open_client peek_backlog peek_backlog_async unique_consumer_name"
    ),
}

__all__, __getattr__, __dir__ = lazy_exports(__name__, _NAMES_OF)
