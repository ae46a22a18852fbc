"""TaskOperator: a conquiet task by its name, once per task instance, waited for without a slot."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_provider_conquiet.airflow_names import AirflowException, AirflowFailException
from airflow_provider_conquiet.arguments import failing_at_once, number
from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.links import DocumentationLink
from airflow_provider_conquiet.task_try import TaskTry, task_span
from airflow_provider_conquiet.triggers.task import TaskTrigger, revoke_task
from conquiet.tasks import PayloadError, TaskApp, TaskFailedError, TaskHandle, TaskStatus, TaskTooLargeError
from conquiet.tasks.following import follow, result_bytes, result_of, sentence_of
from conquiet.tasks.work import Attach, Work

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)

#: XComs are rows of Airflow's database.
MAX_RESULT_BYTES = 48 * 1024


class TaskOperator(BaseOperator):
    """Enqueues a task, waits in the triggerer until it has ended, and returns its result.

    A retry waits for the task of an earlier try, unless that one failed, was revoked or has expired; so does
    a task that was cleared, which then returns the result it had. Tasks are known by the task instance.

    Args:
        task: the task's name, such as "shop.bill".
        args: its arguments, as JSON values.
        task_queue: the queue of the task; `queue` is Airflow's own.
        namespace: that of the `TaskApp`.
        options: more of `TaskOptions`, such as `{"priority": 9, "expires_s": 3600}`.
        attach: "succeeded" waits for the task of an earlier try if it has not ended or has succeeded;
            "unfinished" only if it has not ended: cleared after its success, it is enqueued anew;
            "never" enqueues on every try.
        deferrable: `False` waits in the worker's slot.
        wait_timeout: how long the triggerer waits before the Airflow task fails; the task itself goes on.
        max_result_bytes: a larger result fails the Airflow task, unless `do_xcom_push` is `False`.
        redis_streams_conn_id: a connection of type `redis_streams`.

    Examples:
        >>> with DAG("bill_by_task", schedule=None):
        ...     total = TaskOperator(task_id="total", task="shop.total", args={"day": "{{ ds }}"}, retries=2)
    """

    template_fields: Sequence[str] = (
        "task",
        "args",
        "task_queue",
        "namespace",
        "options",
        "attach",
        "max_result_bytes",
        "redis_streams_conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"args": "json", "options": "json"}
    ui_color = "#e6e1f2"
    operator_extra_links = (DocumentationLink(),)

    #: What a kill revokes.
    _handle: TaskHandle | None = None

    def __init__(
        self,
        *,
        task: str,
        args: Mapping[str, Any] | None = None,
        task_queue: str = "default",
        namespace: str = "tasks",
        options: Mapping[str, Any] | None = None,
        attach: Attach = "succeeded",
        deferrable: bool = True,
        wait_timeout: timedelta | None = None,
        max_result_bytes: int | str = MAX_RESULT_BYTES,
        redis_streams_conn_id: str = RedisStreamsHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.task = task
        self.args = args
        self.task_queue = task_queue
        self.namespace = namespace
        self.options = options
        self.attach = attach
        self.deferrable = deferrable
        self.wait_timeout = wait_timeout
        self.max_result_bytes = max_result_bytes
        self.redis_streams_conn_id = redis_streams_conn_id

    def execute(self, context: Context) -> Any:
        """Enqueue the task, or find that of an earlier try, and wait for it."""
        return self.run_task(context, self.args)

    def run_task(self, context: Context, args: object) -> Any:
        """Enqueue and wait; returns the result, or defers."""
        with task_span(context), self._app() as app:
            with failing_at_once(TaskTooLargeError):
                handle = self._handle = self._enqueue(app, TaskTry.of_context(context), args)
            status = app.results.status(handle.id, handle.queue)
            is_ended = status is None or status.state.is_final
            if is_ended or not self.deferrable:
                return self._result(handle.id, follow(app.results, handle.id, handle.queue, log.info))
        trigger = TaskTrigger(
            conquiet_task_id=handle.id,
            task_queue=handle.queue,
            namespace=self.namespace,
            redis_streams_conn_id=self.redis_streams_conn_id,
        )
        return self.defer(trigger=trigger, method_name="execute_complete", timeout=self.wait_timeout)

    def execute_complete(self, context: Context, event: dict[str, Any], **_: Any) -> Any:
        """Return the result of the task that has ended, or fail with its error."""
        with self._app() as app:
            status = app.results.status(event["id"], event["task_queue"])
        if status is not None:
            log.info(sentence_of(status))
        return self._result(event["id"], status)

    def on_kill(self) -> None:
        """Revoke the task; while it is waited for in the triggerer, the trigger does that."""
        handle = self._handle
        if handle is not None:
            with self._app() as app:
                log.info(revoke_task(app, handle.id, handle.queue))

    def _app(self) -> TaskApp:
        with failing_at_once():
            return TaskApp(RedisStreamsHook(self.redis_streams_conn_id).url, namespace=self.namespace)

    def _enqueue(self, app: TaskApp, task_try: TaskTry, args: object) -> TaskHandle:
        if not isinstance(args, Mapping | None):
            raise TypeError(
                f"args must be a dict, got {args!r:.100}. A template renders to text: use the upstream "
                "task's `.output`, or a DAG with render_template_as_native_obj=True"
            )
        call = app.call(self.task, args or {}, **{**(self.options or {}), "queue": self.task_queue})
        work = Work(name=task_try.dedupe_id, tries=task_try.try_number, attach=self.attach)
        handle = work.enqueue(app, call)
        words = "enqueued" if handle.is_new else "found, as an earlier try has enqueued it:"
        log.info("%s task %s (%s) in queue %r", words, handle.id, self.task, handle.queue)
        return handle

    def _result(self, task_id: str, status: TaskStatus | None) -> Any:
        try:
            value = result_of(task_id, status)
        except TaskFailedError as error:
            raise AirflowException(f"{error}; a retry enqueues it anew") from error
        except PayloadError as error:
            if not self.do_xcom_push:
                return None
            raise AirflowFailException(f"{error}: give do_xcom_push=False") from error
        if not self.do_xcom_push:
            return None
        most = number("max_result_bytes", self.max_result_bytes, int)
        if (size := result_bytes(value)) > most:
            raise AirflowFailException(
                f"task {task_id} has succeeded, and its result of {size:,} bytes is above max_result_bytes, "
                f"{most:,}: have it return the name of what it stored, or give "
                "do_xcom_push=False"
            )
        return value
