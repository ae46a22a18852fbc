"""The kinds of handlers: plain or `async def`, of a message or a batch, for payloads as JSON or of a type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine

from conquiet.consume.batch_handler import BatchHandler
from conquiet.consume.batch_handling import BatchHandling
from conquiet.consume.handling import Handler, MessageHandling, check_handler, is_async
from conquiet.consume.references import load_payload_type
from conquiet.db import Inbox
from conquiet.payload import PayloadCodec, StandardCodec

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from conquiet.consume.async_handling import AsyncHandling


@dataclass(frozen=True, slots=True)
class PayloadType:
    """What a handler's messages have as their payload, instead of the JSON object."""

    #: A type, or where to import it from: "shop.orders:Order".

    kind: Any
    codec: PayloadCodec | None = None

    def __post_init__(self) -> None:
        if self.codec is None:
            object.__setattr__(self, "codec", StandardCodec())
        if isinstance(self.kind, str):
            object.__setattr__(self, "kind", load_payload_type(self.kind))
        if isinstance(self.codec, StandardCodec):
            self.codec.check_type(self.kind)

    @classmethod
    def of(cls, kind: Any, codec: PayloadCodec | None) -> PayloadType | None:
        """That of a `payload=`; `None` for dicts as they are."""
        return None if kind is None else cls(kind, codec)

    def typed(self, msg: Any) -> Any:
        """The message with a value of the type."""
        assert self.codec is not None  # noqa: S101 -- for mypy: set above
        return msg.with_payload(self.codec.decode(self.kind, msg.payload))


def new_handling(
    handler: Handler,
    engine: Engine | AsyncEngine | None,
    inbox: Inbox | bool | None = None,
    *,
    payload: PayloadType | None = None,
    before_commit: Callable[[], None] | None = None,
) -> MessageHandling | AsyncHandling:
    """What is done with each message, or batch, of a drain or a consumer.

    Raises:
        TypeError: the handler and the engine are of different kinds, or it cannot be called as it will be.
    """
    # Not `isinstance`: the core does not import SQLAlchemy's asyncio.
    may_be_async = engine is None or hasattr(engine, "sync_engine")
    check_handler(handler, arguments=1 if engine is None else 2, may_be_async=may_be_async)
    call = handler if payload is None else _with_typed(handler, payload)
    if not is_async(handler):
        return _plain_handling(call, engine, inbox, before_commit)
    # Not above: greenlets are an extra.
    from conquiet.consume.async_handling import AsyncHandling, awaiting

    # As checked above.
    of_loop: Any = engine
    if isinstance(call, BatchHandler):
        call = BatchHandler(awaiting(call.handle_all, of_loop))
    else:
        call = awaiting(call, of_loop)
    sync_engine = None if of_loop is None else of_loop.sync_engine
    return AsyncHandling(_plain_handling(call, sync_engine, inbox, before_commit), of_loop)


def _plain_handling(
    handler: Handler,
    engine: Any,
    inbox: Inbox | bool | None,
    before_commit: Callable[[], None] | None,
) -> MessageHandling:
    kind: Any = BatchHandling if isinstance(handler, BatchHandler) else MessageHandling
    handling: MessageHandling = kind(handler, engine, inbox, before_commit=before_commit)
    return handling


def _with_typed(handler: Handler, payload: PayloadType) -> Handler:
    """The same for messages as they are read; a payload that does not fit fails as its handler would."""
    if isinstance(handler, BatchHandler):
        handle_all = handler.handle_all
        return BatchHandler(
            lambda messages, *session: handle_all([payload.typed(msg) for msg in messages], *session)
        )

    @wraps(handler)
    def call(msg: Any, *session: Any) -> Any:
        return handler(payload.typed(msg), *session)

    return call
