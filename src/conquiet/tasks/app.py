"""TaskApp: the tasks of an application, and how they are enqueued."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

from sqlalchemy import Engine

from conquiet.arguments import check_name, check_positive_int
from conquiet.db import Inbox
from conquiet.settings import Settings
from conquiet.tasks.codec import EnvelopeCodec
from conquiet.tasks.connections import AppConnections
from conquiet.tasks.control import Control, Revocation
from conquiet.tasks.declarations import Declarations
from conquiet.tasks.envelope import TaskEnvelope
from conquiet.tasks.errors import UnknownTaskError
from conquiet.tasks.events import AsyncTaskEvents, TaskEvents
from conquiet.tasks.handle import TaskHandle
from conquiet.tasks.middleware import Middleware
from conquiet.tasks.options import TaskOptions
from conquiet.tasks.plain_form import PlainForm
from conquiet.tasks.record import TaskStatus
from conquiet.tasks.scheduled import Scheduled, scheduled_target
from conquiet.tasks.schedules import Schedule, ScheduleOptions, Schedules
from conquiet.tasks.scripts.enqueue import NewTask
from conquiet.tasks.sender import TaskSender, ToSend
from conquiet.tasks.sql_results import ResultStore, SqlResults
from conquiet.tasks.task import TaskCall

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from conquiet.tasks.security import Encryption, Signing

#: A task that returns what it is given: the results of a group as one.
GATHER = "conquiet.gather"


class TaskApp(AppConnections, Declarations):
    """The tasks of an application; lives as long as its process, and opens its connections when needed.

    Args:
        server: the URL of the server, or settings; without, those of the process.
        database: an engine or a URL, for tasks that take a `DbSession`, or an `AsyncSession`.
        namespace: what all keys begin with; two apps of one namespace share their queues.
        defaults: options of every task that does not say otherwise.
        max_bytes: the largest envelope and the largest result in Redis; see `payload_store` for larger ones.
        signing: signs every task; one without a valid signature becomes a dead letter.
        encryption: encrypts arguments.
        middleware: called around every task, the first one outermost.

    Examples:
        >>> shop = TaskApp(server.url, database=engine, namespace="shop")
        >>> @shop.task(max_retries=5)
        ... def greet(name: str) -> str:
        ...     return f"Hello {name}"
        >>> greet.enqueue("Ann").id == greet.enqueue("Ann").id
        False
    """

    def __init__(
        self,
        server: str | Settings | None = None,
        *,
        database: Engine | AsyncEngine | str | None = None,
        namespace: str = "tasks",
        defaults: TaskOptions | None = None,
        max_bytes: int = 1 << 20,
        signing: Signing | None = None,
        encryption: Encryption | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        check_name("namespace", namespace)
        check_positive_int("max_bytes", max_bytes)
        AppConnections.__init__(self, server, database, namespace)
        Declarations.__init__(self, defaults or TaskOptions())
        #: Both of tasks that take a `DbSession`; others are set before a worker starts.
        self.inbox = Inbox()
        self.result_store: ResultStore = SqlResults()
        self.codec = EnvelopeCodec(
            max_bytes=max_bytes, payloads=self.payloads, signing=signing, encryption=encryption
        )
        self._sender = TaskSender(self, self.codec)
        self.middleware = tuple(middleware)
        #: What is enqueued when: reads and changes schedules.
        self.schedules = Schedules(self)
        self.task(name=GATHER, max_retries=0)(_gather)

    def schedule(
        self,
        name: str,
        target: Scheduled,
        args: Mapping[str, Any] | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Declare a schedule, which a beat writes when it starts; see `Schedule` for its options."""
        return self.schedules.declare(self.new_schedule(name, target, args, **options))

    def new_schedule(
        self,
        name: str,
        target: Scheduled,
        args: Mapping[str, Any] | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """As `schedule`, for `app.schedules.apply`: nothing is declared."""
        return Schedule.of(name, scheduled_target(self.tasks, target, args), **options)

    def enqueue(self, name: str, args: Mapping[str, Any] | None = None, **options: Any) -> TaskHandle:
        """Enqueue a task by its name, also one that this process does not import; arguments as JSON.

        Of a task that is known here, arguments are validated and its own options apply.
        """
        return self.send(self.call(name, args or {}, **options))

    async def enqueue_async(
        self, name: str, args: Mapping[str, Any] | None = None, **options: Any
    ) -> TaskHandle:
        """As `enqueue`, for an event loop."""
        return await self.send_async(self.call(name, args or {}, **options))

    def call(self, name: str, args: Mapping[str, Any], **options: Any) -> TaskCall:
        """A call by the task's name, as `enqueue` sends it."""
        if (task := self.tasks.get(name)) is None:
            return TaskCall(name, args, self.defaults.but(**options))
        return task.with_options(**options).call(**args)

    def send(self, call: TaskCall) -> TaskHandle:
        """Enqueue one call."""
        envelope = self.envelope(call)
        enqueued = self._sender.send(envelope, call.options)
        return TaskHandle(enqueued.id, envelope.queue, call.name, enqueued.is_new, _app=self)

    def send_plain(self, form: PlainForm, args: str) -> TaskHandle | None:
        """As `send`, in less time; `None`: nothing was done, it takes `send`."""
        task_id = self._sender.send_plain(form, args)
        return None if task_id is None else TaskHandle(task_id, form.queue, form.name, _app=self)

    def send_many(self, calls: Iterable[TaskCall]) -> list[TaskHandle]:
        """Enqueue calls in order, in one round trip for up to 1,000.

        Raises:
            QueueError: the first one that was refused; those before it, and maybe others, are enqueued.
        """
        return self.send_envelopes(((self.envelope(call), call.options) for call in calls), are_new=True)

    def send_envelopes(self, envelopes: Iterable[ToSend], *, are_new: bool = False) -> list[TaskHandle]:
        """Enqueue tasks as they are to be written; one whose id has a record is not, unless `are_new`."""
        return [
            TaskHandle(enqueued.id, envelope.queue, envelope.name, enqueued.is_new, _app=self)
            for envelope, enqueued in self._sender.send_many(envelopes, are_new=are_new)
        ]

    async def send_async(self, call: TaskCall) -> TaskHandle:
        """As `send`, for an event loop."""
        return await to_thread(self.send, call)

    async def send_many_async(self, calls: Iterable[TaskCall]) -> list[TaskHandle]:
        """As `send_many`, for an event loop."""
        return await to_thread(self.send_many, calls)

    def handle(self, task_id: str, queue: str | None = None) -> TaskHandle:
        """The handle of a task by its id; without its queue, every queue is asked.

        Raises:
            UnknownTaskError: no queue has a record of it.
        """
        for name in [queue] if queue is not None else self.queues():
            status = self.results.status(task_id, name)
            if status is not None:
                return TaskHandle(task_id, name, status.name, _app=self)
        raise UnknownTaskError(task_id)

    def revoke(
        self, task_id: str, queue: str | None = None, *, terminate: bool = False, canvas_task: str = ""
    ) -> Revocation:
        """Have a task not run, nor tried again; without its queue, every queue is asked for its record.

        Args:
            terminate: raise `TaskRevokedError` inside of the task if it runs. Else it runs to its end.
            canvas_task: of a canvas, the name of its last task, which may not be enqueued yet.

        Raises:
            UnknownTaskError: no queue was given, and none has a record of it.
        """
        queue = self.handle(task_id).queue if queue is None else queue
        return self.control.revoke(task_id, queue=queue, terminate=terminate, canvas_task=canvas_task)

    def known_queues(self) -> list[str]:
        """The names of all queues that were ever used, and of those that tasks of this app declare."""
        return sorted({*self.queues(), *(task.options.queue for task in self.tasks.values())})

    def events(self, queues: Sequence[str] | None = None, *, idle_s: float | None = None) -> TaskEvents:
        """What happens to tasks from now on, in all processes: `for event in app.events(): …`.

        Best effort, see `TaskEvents`. While nobody listens it costs nothing.

        Args:
            queues: their names; without, every queue, also one that is used for the first time later.
            idle_s: end after so long without an event; without, only `close()` ends it.
        """
        return TaskEvents(self, queues, idle_s)

    def events_async(
        self, queues: Sequence[str] | None = None, *, idle_s: float | None = None
    ) -> AsyncTaskEvents:
        """As `events`, for an event loop: `async with app.events_async() as events`, then `async for`."""
        return AsyncTaskEvents(self, queues, idle_s)

    def result_of(self, status: TaskStatus) -> Any:
        """The result of a task that has succeeded, as it returned it.

        Raises:
            PayloadError: it was stored, and is not there, or is not what was stored.
        """
        value = status.result if status.stored is None else self.codec.load_result(status.stored)
        return self.load_result(status.name, value)

    @cached_property
    def control(self) -> Control:
        """Revokes tasks, pauses queues, changes rates, and asks the workers that run."""
        return Control(self)

    def close(self) -> None:
        """Close the connections; the app opens new ones when it is used again."""
        self.schedules.forget_store()
        self._sender.forget_queues()
        super().close()

    def prepare(self, envelope: TaskEnvelope, options: TaskOptions) -> NewTask:
        """What is written to enqueue a task, for a caller that writes it by a script, and lists its queue."""
        return self._sender.new_task(envelope, options)

    def envelope(self, call: TaskCall) -> TaskEnvelope:
        """What is written for a call."""
        return call.envelope(self.declared_options(call.name))


def _gather(results: list[Any]) -> list[Any]:
    return results
