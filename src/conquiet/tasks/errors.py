"""The errors of the task layer.

TaskError
├── UnknownTaskError        an id of which no queue has a record
├── TaskArgumentsError      arguments that do not fit the task's signature
├── TaskResultError         a result that is not of the annotated type, or that JSON cannot carry
├── TaskFailedError         `result()` of a task that failed, was revoked or has expired; `state`, `error`
├── ResultTimeoutError      `result()` of a task that has not ended in time; also a TimeoutError
├── TaskTooLargeError       arguments or a result above the limit
├── PayloadError            stored arguments or a stored result that is missing, or is not what was stored
├── PayloadStoreError       the payload store has failed
├── PayloadPurgeError       content that a purge could not delete; `purged`, `errors`
├── SoftTimeLimitError      raised inside of a task that runs longer than its soft limit
├── HardTimeLimitError      the task ran longer than its hard limit, and its process was killed
├── HardLimitPoolError      a task with a hard limit, and a worker that cannot kill it; also a ValueError
├── ProcessDiedError        the process of the task died: killed, out of memory, crashed
├── TaskExitError           the task called `sys.exit()`
├── TaskRevokedError        raised inside of a task that was revoked while it runs
└── DeadLetterError         a dead letter that cannot be retried
"""

from __future__ import annotations

from collections.abc import Sequence

from conquiet.errors import ConquietError

#: Of many errors in one sentence.
_MOST_SHOWN = 3


class TaskError(ConquietError):
    """The root of the errors of tasks.

    Examples:
        >>> try:
        ...     price.enqueue("two", 50).result(timeout_s=60)
        ... except TaskError as error:
        ...     print(type(error).__name__)
        TaskArgumentsError
    """


class UnknownTaskError(TaskError):
    """No queue knows a task, or a group, with this id.

    Examples:
        >>> try:
        ...     app.handle("1700000000000-0", queue="default").result(timeout_s=1)
        ... except UnknownTaskError as error:
        ...     print(error.task_id)
        1700000000000-0
    """

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        super().__init__(
            f"nothing is known of task {task_id!r}: it was not enqueued here, keeps no result "
            "(ignore_result), or its result_ttl_s has passed"
        )


class TaskArgumentsError(TaskError):
    """Arguments that do not fit the signature of a task.

    Examples:
        >>> try:
        ...     price.enqueue("two", 5)
        ... except TaskArgumentsError as error:
        ...     print("refused before it was enqueued")
        refused before it was enqueued
    """

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(f"the arguments of task {name!r} do not fit its signature: {reason}")


class TaskResultError(TaskError):
    """What a task returned cannot be stored as its result.

    Examples:
        >>> @app.task
        ... def open_file():
        ...     return object()
        >>> try:
        ...     open_file.enqueue().result(timeout_s=60)
        ... except TaskFailedError as error:
        ...     print("TaskResultError" in error.error)
        True
    """

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(
            f"the result of task {name!r} cannot be stored: {reason}. Return what JSON can carry, annotate "
            "the return type, or set ignore_result"
        )


class TaskFailedError(TaskError):
    """The task has ended without a result.

    Examples:
        >>> @app.task(max_retries=0)
        ... def fail() -> None:
        ...     raise ValueError("no stock")
        >>> try:
        ...     fail.enqueue().result(timeout_s=60)
        ... except TaskFailedError as error:
        ...     print("no stock" in str(error))
        True
    """

    def __init__(self, task_id: str, *, state: str, error: str) -> None:
        self.task_id = task_id
        self.state = state
        self.error = error
        super().__init__(f"task {task_id} is {state.replace('_', '-')}: {error}")


class ResultTimeoutError(TaskError, TimeoutError):
    """The task has not ended in time; it goes on.

    Examples:
        >>> try:
        ...     price.with_options(queue="no-worker").enqueue(2, 50).result(timeout_s=0.1)
        ... except ResultTimeoutError as error:
        ...     print(error.queue, error.state)
        no-worker queued
    """

    def __init__(self, task_id: str, *, queue: str, state: str | None, timeout_s: float) -> None:
        self.task_id = task_id
        self.queue = queue
        self.state = state
        super().__init__(
            f"task {task_id} of queue {queue!r} has not ended within {timeout_s:g} s, it is "
            f"{state or 'unknown'}: does a worker read queue {queue!r}? `conquiet doctor` says"
        )


class TaskTooLargeError(TaskError):
    """Arguments or a result that would not fit into the queue.

    Examples:
        >>> small = TaskApp(server.url, namespace="small", max_bytes=1_000)
        >>> try:
        ...     small.enqueue("shop.print", {"text": "x" * 2_000})
        ... except TaskTooLargeError as error:
        ...     print(error.limit)
        1000
    """

    def __init__(self, what: str, *, size: int, limit: int, may_be_stored: bool = True) -> None:
        self.size = size
        self.limit = limit
        store = "give the TaskApp a payload_store, " if may_be_stored else ""
        super().__init__(
            f"{what} has {size:,} bytes, the limit is {limit:,}: {store}"
            "store it elsewhere and pass its name, or raise max_bytes"
        )


class PayloadError(TaskError):
    """Stored content that cannot be used, now or later.

    Examples:
        >>> try:
        ...     cents = price.enqueue(2, 50).result(timeout_s=60)
        ... except PayloadError as error:  # the result was in the payload store, and was deleted there
        ...     print(error.key, error.reason)
    """

    def __init__(self, key: str, reason: str) -> None:
        self.key = key
        self.reason = reason
        super().__init__(f"the stored content {key} cannot be used: {reason}")


class PayloadStoreError(TaskError):
    """The payload store has failed; it may work again later.

    Examples:
        >>> kept = TaskApp(server.url, namespace="kept", max_bytes=1_000)
        >>> kept.payload_store = DirectoryPayloads("not-mounted")
        >>> try:
        ...     kept.enqueue("shop.print", {"text": "x" * 2_000})
        ... except PayloadStoreError:
        ...     print("nothing was enqueued")
        nothing was enqueued
    """

    def __init__(self, what: str, key: str, error: Exception) -> None:
        self.key = key
        super().__init__(f"the payload store could not {what} {key}: {type(error).__name__}: {error}")


class PayloadPurgeError(TaskError):
    """Content that a purge could not delete; it has deleted the rest.

    Examples:
        >>> kept = TaskApp(server.url, namespace="kept")
        >>> kept.payload_store = SqlPayloads(engine)
        >>> try:
        ...     purged = kept.control.purge_payloads(queue="default", older_than_ms=86_400_000)
        ... except PayloadPurgeError as error:
        ...     print(error.purged, "were deleted, these could not be:", error.errors)
    """

    def __init__(self, queue: str, purged: int, errors: Sequence[PayloadStoreError]) -> None:
        self.queue = queue
        self.purged = purged
        self.errors = tuple(errors)
        more = f"; and {len(errors) - _MOST_SHOWN:,} more" if len(errors) > _MOST_SHOWN else ""
        super().__init__(
            f"{purged:,} payloads of queue {queue!r} were deleted, {len(errors):,} could not be: "
            f"{'; '.join(map(str, errors[:_MOST_SHOWN]))}{more}"
        )


class SoftTimeLimitError(TaskError):
    """The task runs longer than its soft time limit; it may clean up and end.

    Examples:
        >>> import time
        >>> @app.task(soft_time_limit_s=0.1, max_retries=0)
        ... def crunch() -> str:
        ...     try:
        ...         while True:
        ...             time.sleep(0.01)
        ...     except SoftTimeLimitError:
        ...         return "as far as it came"
        >>> crunch.enqueue().result(timeout_s=60)
        'as far as it came'
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        super().__init__(f"the task runs longer than its soft time limit of {limit_s:g} s")


class HardTimeLimitError(TaskError):
    """The task ran longer than its hard time limit, and its process was killed.

    Examples:
        >>> try:
        ...     cents = price.enqueue(2, 50).result(timeout_s=60)
        ... except TaskFailedError as error:  # the caller gets the error of the last attempt as text
        ...     print("HardTimeLimitError" in error.error)
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        super().__init__(f"the task ran longer than its hard time limit of {limit_s:g} s, and was killed")


class HardLimitPoolError(TaskError, ValueError):
    """A task with a hard time limit needs a process of its own, which can be killed.

    Examples:
        >>> limited = TaskApp(server.url, namespace="limited")
        >>> @limited.task(hard_time_limit_s=60)
        ... def render() -> None:
        ...     print("takes long")
        >>> try:
        ...     Worker(limited, WorkerConfig(pool="thread")).start()
        ... except HardLimitPoolError as error:
        ...     print(error.pool)
        thread
    """

    def __init__(self, name: str, *, limit_s: float, pool: str) -> None:
        self.name = name
        self.pool = pool
        super().__init__(
            f"task {name!r} has a hard time limit of {limit_s:g} s, and the pool {pool!r} cannot end a task: "
            "use the pool 'process', or a soft time limit"
        )


class ProcessDiedError(TaskError):
    """The process that ran the task died.

    Examples:
        >>> try:
        ...     cents = price.enqueue(2, 50).result(timeout_s=60)
        ... except TaskFailedError as error:  # the caller gets the error of the last attempt as text
        ...     print("ProcessDiedError" in error.error)
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the process of the task {reason}")


class TaskExitError(TaskError):
    """The task raised what ends a process, as `sys.exit()`: its attempt has failed, the worker goes on.

    Examples:
        >>> @app.task(max_retries=0)
        ... def leave() -> None:
        ...     raise SystemExit(3)
        >>> try:
        ...     leave.enqueue().result(timeout_s=60)
        ... except TaskFailedError as error:
        ...     print(error.error)
        conquiet.tasks.errors.TaskExitError: the task called sys.exit(3): return, or raise an exception
    """

    def __init__(self, error: BaseException) -> None:
        #: Of `sys.exit()`.
        self.code = error.code if isinstance(error, SystemExit) else None
        is_exit = isinstance(error, SystemExit)
        what = f"called sys.exit({self.code!r})" if is_exit else f"raised {type(error).__name__}"
        super().__init__(f"the task {what}: return, or raise an exception")


class TaskRevokedError(TaskError):
    """The task was revoked while it runs.

    Examples:
        >>> @app.task
        ... def export(rows: int) -> int:
        ...     try:
        ...         return rows  # some long work, which app.revoke(task_id, terminate=True) interrupts
        ...     except TaskRevokedError:
        ...         print("it is cleaned up here")
        ...         raise
        >>> export.enqueue(5).result(timeout_s=60)
        5
    """

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        super().__init__(f"task {task_id} was revoked")


class DeadLetterError(TaskError):
    """A dead letter that cannot be retried.

    Examples:
        >>> try:
        ...     app.control.retry("1700000000000-0", queue="default")
        ... except DeadLetterError as error:
        ...     print(error.letter)
        1700000000000-0
    """

    def __init__(self, queue: str, letter: str, reason: str) -> None:
        self.queue = queue
        self.letter = letter
        self.reason = reason
        super().__init__(f"dead letter {letter} of queue {queue!r} cannot be retried: {reason}")


class HardStopError(BaseException):
    """Raised inside of a task whose worker ends at once; no error of the task, which is handed back."""
