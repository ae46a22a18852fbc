"""Exit codes, and which error means which; documented in docs/cli.md."""

from __future__ import annotations

import sys
from enum import IntEnum

from conquiet import errors


class ExitCode(IntEnum):
    """What a script may rely on."""

    DONE = 0
    #: It ran, and something in it failed: messages of a drain, letters of a replay, a check, a task.
    FAILED = 1
    #: The arguments or settings are wrong; nothing was done.
    USAGE = 2
    #: A call to Redis failed.
    REDIS = 3
    #: A topic, group, queue, letter, task or schedule is not there, or another one owns or changed it.
    NOT_THERE = 4
    #: The database could not be used.
    DATABASE = 5
    #: It would change something for good, and was not confirmed.
    NOT_CONFIRMED = 6
    #: The embedded server did not start, or ended by itself.
    SERVER = 7
    #: The doctor found warnings, and no error.
    WARNINGS = 8
    #: Stopped with Ctrl-C in the middle.
    INTERRUPTED = 130
    #: A bug of conquiet.
    BUG = 70


class NotConfirmedError(errors.ConquietError):
    """The change was not confirmed; nothing was changed."""


class UnknownQueueError(errors.ConquietError):
    """No task was ever enqueued into a queue of this name."""

    def __init__(self, name: str, namespace: str) -> None:
        super().__init__(
            f"there is no queue {name!r} in namespace {namespace!r}: `conquiet queues` lists them"
        )


class NoServerError(errors.ConquietError):
    """Nothing answers where the server should be."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"no server answers at {url}: start one, give --url, or use --dev ({reason})")


class UsageError(errors.ConquietError):
    """Arguments that do not go together."""


_CODES: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (NotConfirmedError, ExitCode.NOT_CONFIRMED),
    (UsageError, ExitCode.USAGE),
    (NoServerError, ExitCode.REDIS),
    (UnknownQueueError, ExitCode.NOT_THERE),
    (errors.SettingsError, ExitCode.USAGE),
    (errors.DrainError, ExitCode.FAILED),
    (errors.MessageRejectedError, ExitCode.FAILED),
    (errors.HandlerCancelledError, ExitCode.FAILED),
    (errors.LeaseLostError, ExitCode.NOT_THERE),
    (errors.ConsumerBusyError, ExitCode.NOT_THERE),
    (errors.TopicError, ExitCode.NOT_THERE),
    (errors.DbError, ExitCode.DATABASE),
    (errors.EmbeddedServerError, ExitCode.SERVER),
    (errors.QueueError, ExitCode.REDIS),
    (ImportError, ExitCode.USAGE),
    # What the library refuses of its arguments: the values came from the command line.
    (ValueError, ExitCode.USAGE),
    (TypeError, ExitCode.USAGE),
    (KeyboardInterrupt, ExitCode.INTERRUPTED),
)


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code of a command that ended with this error."""
    codes = (*_task_codes(), *_CODES)
    return next((code for kind, code in codes if isinstance(error, kind)), ExitCode.BUG)


def _task_codes() -> tuple[tuple[type[BaseException], ExitCode], ...]:
    # The task layer is an extra: only what has imported it can raise its errors.
    if "conquiet.tasks" not in sys.modules:
        return ()
    from conquiet.tasks import errors as of_tasks
    from conquiet.tasks.schedules import ScheduleChangedError, UnknownScheduleError

    return (
        (of_tasks.UnknownTaskError, ExitCode.NOT_THERE),
        (UnknownScheduleError, ExitCode.NOT_THERE),
        (ScheduleChangedError, ExitCode.NOT_THERE),
        (of_tasks.HardLimitPoolError, ExitCode.USAGE),
        (of_tasks.DeadLetterError, ExitCode.NOT_THERE),
        (of_tasks.TaskArgumentsError, ExitCode.USAGE),
        (of_tasks.TaskTooLargeError, ExitCode.USAGE),
        (of_tasks.TaskError, ExitCode.FAILED),
    )
