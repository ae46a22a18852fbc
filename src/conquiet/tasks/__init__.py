"""Tasks: functions by name, with states and results (document 004); needs the extra `conquiet[tasks]`."""

from conquiet.consume.outcome import DeadLetter, Retry
from conquiet.mq import RetryPolicy
from conquiet.tasks.app import TaskApp
from conquiet.tasks.beat import Beat, BeatCollector, BeatConfig
from conquiet.tasks.canvas import GroupHandle, chain, chord, group
from conquiet.tasks.collector import TaskCollector
from conquiet.tasks.context import TaskContext, current_task
from conquiet.tasks.control import Control, QueueStats, Revocation, WorkerDescription
from conquiet.tasks.errors import (
    DeadLetterError,
    HardLimitPoolError,
    HardTimeLimitError,
    PayloadError,
    PayloadPurgeError,
    PayloadStoreError,
    ProcessDiedError,
    ResultTimeoutError,
    SoftTimeLimitError,
    TaskArgumentsError,
    TaskError,
    TaskExitError,
    TaskFailedError,
    TaskResultError,
    TaskRevokedError,
    TaskTooLargeError,
    UnknownTaskError,
)
from conquiet.tasks.events import AsyncTaskEvents, TaskEvent, TaskEvents
from conquiet.tasks.handle import TaskHandle
from conquiet.tasks.maintenance import add_maintenance
from conquiet.tasks.middleware import Middleware
from conquiet.tasks.options import TaskOptions
from conquiet.tasks.payload_store import DirectoryPayloads, PayloadStore, SqlPayloads
from conquiet.tasks.rates import Bucket, Rate, RateLimiter
from conquiet.tasks.record import TaskState, TaskStatus
from conquiet.tasks.schedules import (
    KeptSchedule,
    MessageTarget,
    RedisScheduleStore,
    Schedule,
    ScheduleChangedError,
    Schedules,
    ScheduleStore,
    TaskTarget,
    UnknownScheduleError,
    next_occurrences,
)
from conquiet.tasks.schedules.files import load_schedules
from conquiet.tasks.sql_results import ResultStore, SqlResults
from conquiet.tasks.task import Task, TaskCall
from conquiet.tasks.worker import ProcessWorker, Worker, WorkerConfig

__all__ = [
    "AsyncTaskEvents",
    "Beat",
    "BeatCollector",
    "BeatConfig",
    "Bucket",
    "Control",
    "DeadLetter",
    "DeadLetterError",
    "DirectoryPayloads",
    "GroupHandle",
    "HardLimitPoolError",
    "HardTimeLimitError",
    "KeptSchedule",
    "MessageTarget",
    "Middleware",
    "PayloadError",
    "PayloadPurgeError",
    "PayloadStore",
    "PayloadStoreError",
    "ProcessDiedError",
    "ProcessWorker",
    "QueueStats",
    "Rate",
    "RateLimiter",
    "RedisScheduleStore",
    "ResultStore",
    "ResultTimeoutError",
    "Retry",
    "RetryPolicy",
    "Revocation",
    "Schedule",
    "ScheduleChangedError",
    "ScheduleStore",
    "Schedules",
    "SoftTimeLimitError",
    "SqlPayloads",
    "SqlResults",
    "Task",
    "TaskApp",
    "TaskArgumentsError",
    "TaskCall",
    "TaskCollector",
    "TaskContext",
    "TaskError",
    "TaskEvent",
    "TaskEvents",
    "TaskExitError",
    "TaskFailedError",
    "TaskHandle",
    "TaskOptions",
    "TaskResultError",
    "TaskRevokedError",
    "TaskState",
    "TaskStatus",
    "TaskTarget",
    "TaskTooLargeError",
    "UnknownScheduleError",
    "UnknownTaskError",
    "Worker",
    "WorkerConfig",
    "WorkerDescription",
    "add_maintenance",
    "chain",
    "chord",
    "current_task",
    "group",
    "load_schedules",
    "next_occurrences",
]
