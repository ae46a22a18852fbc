"""What is done with a batch: one transaction, one insert into the inbox, the handler, the commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Engine

from conquiet.consume.batch_handler import BatchHandler
from conquiet.consume.channel import Message
from conquiet.consume.handling import MessageHandling, RolledBackError, answer_of, check_handler
from conquiet.consume.outcome import Ack, Outcome, Skipped
from conquiet.db import DbSession, Inbox

_SKIPPED = Skipped()


class BatchHandling(MessageHandling):
    """Handles batches, and a message by itself as a list of one; one thread, one kept connection."""

    takes_batches = True

    def __init__(
        self,
        handler: BatchHandler,
        engine: Engine | None,
        inbox: Inbox | bool | None = None,
        *,
        before_commit: Callable[[], None] | None = None,
    ) -> None:
        batch = handler.handle_all
        alone = (lambda msg: batch([msg])) if engine is None else (lambda msg, session: batch([msg], session))
        super().__init__(alone, engine, inbox, before_commit=before_commit)
        check_handler(handler, arguments=1 if engine is None else 2)
        self._batch = handler

    def for_another_thread(self) -> BatchHandling:
        """The same with a connection of its own."""
        return BatchHandling(self._batch, self._engine, self._inbox, before_commit=self._before_commit)

    def handle_batch(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        """Handle and commit all of them or none; whatever is raised, they must stay pending."""
        if self._engine is None:
            return [answer_of(self._batch.handle_all(list(messages)))] * len(messages)
        self._delivery, done = None, set[str]()
        try:
            connection = self._connection or self._connect()
            self._session = DbSession(connection)
            with self._session as session:
                if self._inbox is not None:
                    self._delivery, done = self._inbox.record_batch(session, messages)
                new = [msg for msg in messages if msg.id not in done]
                answer = answer_of(self._batch.handle_all(new, session)) if new else Ack()
                if not isinstance(answer, Ack):
                    raise RolledBackError(answer)  # noqa: TRY301 -- it leaves the transaction
                if self._before_commit is not None:
                    self._before_commit()
        except BaseException as error:
            self._end_failed(messages, error)
            if isinstance(error, RolledBackError):
                return [error.answer] * len(messages)
            raise
        if connection.get_execution_options() != self._options:
            self.release()
        return [_SKIPPED if msg.id in done else answer for msg in messages]
