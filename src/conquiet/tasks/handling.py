"""TaskHandling: runs a task's function, in a transaction if it takes a session."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from sqlalchemy.exc import SQLAlchemyError

from conquiet.consume.handling import MessageHandling, answer_of
from conquiet.consume.outcome import Ack, DeadLetter, Outcome, Retry, Skipped
from conquiet.db import DbSession
from conquiet.errors import DatabaseUnavailableError
from conquiet.logs import MessageLog
from conquiet.tasks import clock
from conquiet.tasks.app import TaskApp
from conquiet.tasks.canvas.group_handle import MemberError, load_results
from conquiet.tasks.context import TaskContext, running
from conquiet.tasks.errors import (
    HardStopError,
    PayloadError,
    TaskArgumentsError,
    TaskExitError,
    TaskResultError,
    TaskTooLargeError,
)
from conquiet.tasks.interruption import Interruption
from conquiet.tasks.message import TaskMessage
from conquiet.tasks.middleware import call_through
from conquiet.tasks.options import TaskOptions, options_of_call
from conquiet.tasks.scripts.control import publish_event
from conquiet.tasks.transactions import Transactions

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

_log = MessageLog(logging.getLogger(__name__))


class Execution(Protocol):
    """How a pool runs the function of a task; one loop's thread calls it."""

    def begin(self, msg: TaskMessage, consumer: str, hard_limit_s: float | None) -> None:
        """A task is about to run, its transaction included.

        Raises:
            HardLimitPoolError: its hard time limit cannot be kept here.
        """

    def end(self) -> None:
        """It has ended, and is about to be settled."""

    def soft_limit(self, limit_s: float) -> AbstractContextManager[None]:
        """Raise `SoftTimeLimitError` inside of the block when it takes longer."""

    def limited(self, coroutine: Coroutine[Any, Any, Any], limit_s: float) -> Coroutine[Any, Any, Any]:
        """A coroutine that raises `SoftTimeLimitError` inside of this one when it takes longer."""

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end."""


class TaskHandling:
    """What a worker's loop does with one task; one thread.

    A task that takes a `DbSession` has one transaction for its effects, its inbox row and its result.
    """

    takes_batches = False
    #: Tasks run where they are called.
    event_loop = None

    def __init__(
        self,
        app: TaskApp,
        worker: str,
        *,
        write_record: Callable[[TaskMessage, Mapping[str, str]], object],
        execution: Execution,
        interruption: Interruption | None = None,
    ) -> None:
        self._app = app
        self._worker = worker
        self._write_record = write_record
        self._execution = execution
        self._interruption = interruption or Interruption()
        self._plain = MessageHandling(lambda msg: self._call(msg, {}), None)
        self._transactions = Transactions(app, call=self._call_with, save=self._save_result)

    def handle(self, msg: TaskMessage) -> Outcome:
        """Run the function of the task, and commit if it takes a session."""
        self._execution.begin(msg, self._worker, _options(msg).hard_time_limit_s)
        try:
            handling = self._transactions.of(msg) or self._plain
            outcome = handling.handle(msg)
            if isinstance(outcome, Skipped):
                self._load_result(msg)
        finally:
            self._execution.end()
        if isinstance(outcome, Ack) and _log.isEnabledFor(logging.DEBUG):
            seconds = (clock.now_ms() - msg.started_ms) / 1000
            _log.debug("task %s %s succeeded in %.3f s", msg.envelope.name, msg.id, seconds)
        return outcome

    def handle_batch(self, messages: Sequence[TaskMessage]) -> Sequence[Outcome]:
        """Only for handlers of batches."""
        raise TypeError(f"tasks run one by one, not {len(messages)} in a batch")

    def for_another_thread(self) -> TaskHandling:
        """Only for a loop with several threads."""
        raise TypeError("each thread of a worker has a loop of its own")

    @property
    def has_inbox(self) -> bool:
        """Whether the database may know what was handled before."""
        return bool(self._transactions.kinds)

    def has_handled(self, msg: TaskMessage) -> bool:
        """As `MessageHandling.has_handled`."""
        handling = self._transactions.of(msg)
        has_handled = handling is not None and handling.has_handled(msg)
        if has_handled:
            self._load_result(msg)
        return has_handled

    def release(self) -> None:
        """As `MessageHandling.release`."""
        for handling in self._transactions.kinds:
            handling.release()

    def purge_inbox(self) -> None:
        """As `MessageHandling.purge_inbox`."""
        for handling in self._transactions.kinds:
            handling.purge_inbox()

    def is_database_unavailable(self) -> bool:
        """As `MessageHandling.is_database_unavailable`."""
        return any(handling.is_database_unavailable() for handling in self._transactions.kinds)

    def __enter__(self) -> Self:
        self._transactions.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._transactions.close()

    def _load_result(self, msg: TaskMessage) -> None:
        """The result of a task that was committed before.

        Raises:
            DatabaseUnavailableError: it cannot be read now. No failed attempt: the effects have happened.
        """
        try:
            msg.result = self._transactions.load_result(msg)
        except SQLAlchemyError as error:
            text = f"the result of task {msg.id} could not be read: {error}"
            raise DatabaseUnavailableError(text) from error

    def _call_with(self, msg: TaskMessage, session: DbSession | AsyncSession) -> Outcome:
        assert msg.task is not None  # noqa: S101 -- for mypy: a task that takes a session is known
        return self._call(msg, {str(msg.task.signature.session_parameter): session})

    def _save_result(self, msg: TaskMessage, session: DbSession, outcome: Outcome) -> None:
        if isinstance(outcome, Ack) and msg.has_record:
            self._app.result_store.save(session, msg.id, msg.result or b"null")

    def _call(self, msg: TaskMessage, given: dict[str, Any]) -> Outcome:
        task = msg.task
        assert task is not None  # noqa: S101 -- for mypy: an unknown one became a dead letter before
        try:
            self._app.codec.load_args(msg.envelope)
            arguments = task.signature.load({**msg.envelope.args, **self._results_before(msg)})
        except (TaskArgumentsError, PayloadError) as error:
            # They will not fit, or be there, the next time either.
            return DeadLetter(f"{type(error).__name__}: {error}")
        context = TaskContext(
            id=msg.id,
            name=task.name,
            queue=msg.envelope.queue,
            attempt=msg.delivery_count - 1,
            max_retries=msg.envelope.max_retries,
            # Copies: what a task changes in them is in no retry and no follow-up.
            headers=dict(msg.envelope.headers),
            meta=deepcopy(msg.envelope.meta),
            worker=self._worker,
            write=lambda fields: self._write_record(msg, fields),
            publish=partial(self._publish, msg),
        )
        if task.signature.context_parameter is not None:
            given[task.signature.context_parameter] = context
        msg.begins()
        with running(context):
            call = partial(self._call_function, msg, arguments | given)
            value = call_through(self._app.middleware, context, call) if self._app.middleware else call()
        if isinstance(value, Ack | Retry | DeadLetter):
            return value
        if not msg.has_record and msg.canvas is None:
            # Nobody reads it: it may be anything, but for what has not run yet.
            return answer_of(value)
        try:
            result = task.signature.dump_result(value)
            msg.result = b"null" if result is None else self._app.codec.encode_result(msg.envelope, result)
        except (TaskResultError, TaskTooLargeError) as error:
            # To run again what has run to its end would repeat its effects, for a result of the same kind.
            return DeadLetter(f"{type(error).__name__}: {error}")
        return _ACK

    def _call_function(self, msg: TaskMessage, arguments: Mapping[str, Any]) -> Any:
        task, limit_s = msg.task, _options(msg).soft_time_limit_s
        assert task is not None  # noqa: S101 -- for mypy: as in `_call`
        try:
            with self._interruption.allowed(msg.id, is_async=task.is_async):
                if task.is_async:
                    coroutine = self._interruption.cancellable(_without_exits(task.function(**arguments)))
                    if limit_s is not None:
                        coroutine = self._execution.limited(coroutine, limit_s)
                    run = self._transactions.runner_of(msg) or self._execution.run
                    return run(coroutine)
                if limit_s is None:
                    return task.function(**arguments)
                with self._execution.soft_limit(limit_s):
                    return task.function(**arguments)
        except Exception:
            raise
        except BaseException as error:
            if isinstance(error, HardStopError) or _is_interrupt(error):
                raise
            # As an exit of the worker it would be no attempt, and the next worker would exit, too.
            raise TaskExitError(error) from error

    def _publish(self, msg: TaskMessage, kind: str, facts: Mapping[str, Any]) -> None:
        known = {"worker": self._worker, "attempt": msg.delivery_count - 1}
        text = json.dumps(known | dict(facts))
        publish_event(self._app.client, msg.place.keys, msg.id, msg.envelope.name, kind=kind, facts=text)

    def _results_before(self, msg: TaskMessage) -> dict[str, Any]:
        """The results of the group before it in its canvas: they are not in its envelope."""
        group = msg.envelope.meta.get("resultsOf")
        if not isinstance(group, dict) or group.get("into") is None:
            return {}
        keys = self._app.keys(group["queue"])
        results = load_results(self._app, keys, group["group"], group["total"])
        return {
            group["into"]: [{"error": one.error} if isinstance(one, MemberError) else one for one in results]
        }


_ACK = Ack()


def _options(msg: TaskMessage) -> TaskOptions:
    assert msg.task is not None  # noqa: S101 -- for mypy: an unknown one became a dead letter before
    return options_of_call(msg.task.options, msg.envelope.meta)


async def _without_exits(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Await a task's coroutine; what ends a process would end the event loop of all tasks."""
    try:
        return await coroutine
    except (Exception, asyncio.CancelledError, HardStopError):
        raise
    except BaseException as error:
        raise TaskExitError(error) from error


def _is_interrupt(error: BaseException) -> bool:
    """Whether it is the Ctrl-C of somebody whose own thread runs the task, as in a test."""
    is_main = threading.current_thread() is threading.main_thread()
    is_default = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return isinstance(error, KeyboardInterrupt) and is_default
