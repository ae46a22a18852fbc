"""Exit codes, and which error means which; documented in docs/cli.md."""

from __future__ import annotations

from enum import IntEnum

from conquiet.errors import (
    ConquietError,
    DbError,
    DrainError,
    EmbeddedServerError,
    LeaseLostError,
    QueueError,
    SettingsError,
    TopicError,
)


class ExitCode(IntEnum):
    """What a script may rely on."""

    DONE = 0
    #: It ran, and something in it failed: messages of a drain, letters of a replay, a check of the doctor.
    FAILED = 1
    #: The arguments or settings are wrong; nothing was done.
    USAGE = 2
    #: A call to Redis failed.
    REDIS = 3
    #: A topic, group or letter is not there, or somebody else has it.
    NOT_THERE = 4
    #: The database could not be used.
    DATABASE = 5
    #: It would change something for good, and nobody said yes.
    NOT_CONFIRMED = 6
    #: The embedded server did not start, or ended by itself.
    SERVER = 7
    #: The doctor found warnings, and no error.
    WARNINGS = 8
    #: Stopped with Ctrl-C in the middle.
    INTERRUPTED = 130
    #: A bug of conquiet.
    BUG = 70


class NotConfirmedError(ConquietError):
    """Nobody said yes; nothing was changed."""


class UsageError(ConquietError):
    """Arguments that do not go together."""


_CODES: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (NotConfirmedError, ExitCode.NOT_CONFIRMED),
    (UsageError, ExitCode.USAGE),
    (SettingsError, ExitCode.USAGE),
    (DrainError, ExitCode.FAILED),
    (LeaseLostError, ExitCode.NOT_THERE),
    (TopicError, ExitCode.NOT_THERE),
    (DbError, ExitCode.DATABASE),
    (EmbeddedServerError, ExitCode.SERVER),
    (QueueError, ExitCode.REDIS),
    (ImportError, ExitCode.USAGE),
    # What the library refuses of its arguments: the values came from the command line.
    (ValueError, ExitCode.USAGE),
    (TypeError, ExitCode.USAGE),
    (KeyboardInterrupt, ExitCode.INTERRUPTED),
)


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code of a command that ended with this error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.BUG)
