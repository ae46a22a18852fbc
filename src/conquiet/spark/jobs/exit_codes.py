"""How a job ends: exit codes for the caller, and the error that carries one."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process of a job returns.

    Examples:
        >>> ExitCode(2)
        <ExitCode.ARGUMENTS: 2>
        >>> [code.name for code in ExitCode if code.is_mistake]
        ['ARGUMENTS', 'TOPIC', 'DATA']
    """

    DONE = 0
    #: Something that none of the others say.
    FAILED = 1
    #: The command line, the environment or the file of secrets.
    ARGUMENTS = 2
    #: The topic is not there.
    TOPIC = 3
    #: The rows or their columns cannot be read or cannot be written as JSON.
    DATA = 4
    #: Redis does not answer, or refuses.
    REDIS = 5
    #: The database does not answer, or refuses.
    DATABASE = 6

    @property
    def is_mistake(self) -> bool:
        """Whether trying again would end in the same way."""
        return self in (ExitCode.ARGUMENTS, ExitCode.TOPIC, ExitCode.DATA)


class JobError(Exception):
    """A job cannot be done; the sentence is for the user, the code for the caller."""

    def __init__(self, code: ExitCode, sentence: str) -> None:
        self.code = code
        super().__init__(sentence)
