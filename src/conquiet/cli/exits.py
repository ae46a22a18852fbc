"""Exit codes, and which error means which; documented in docs/cli.md."""

from __future__ import annotations

from enum import IntEnum

from conquiet import errors


class ExitCode(IntEnum):
    """What a script may rely on."""

    DONE = 0
    #: It ran, and something in it failed: messages of a drain, letters of a replay, a check of the doctor.
    FAILED = 1
    #: The arguments or settings are wrong; nothing was done.
    USAGE = 2
    #: A call to Redis failed.
    REDIS = 3
    #: A topic, group or letter is not there, or another consumer owns it.
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


class UsageError(errors.ConquietError):
    """Arguments that do not go together."""


_CODES: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (NotConfirmedError, ExitCode.NOT_CONFIRMED),
    (UsageError, ExitCode.USAGE),
    (errors.SettingsError, ExitCode.USAGE),
    (errors.DrainError, ExitCode.FAILED),
    (errors.MessageRejectedError, ExitCode.FAILED),
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
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.BUG)
