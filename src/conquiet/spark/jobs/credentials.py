"""Where servers are, with their passwords: from the environment or from a file, never from a command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

from conquiet.spark.jobs.exit_codes import ExitCode, JobError

REDIS_URL_VARIABLE = "CONQUIET_REDIS_URL"
DATABASE_URL_VARIABLE = "CONQUIET_DATABASE_URL"
JDBC_URL_VARIABLE = "CONQUIET_JDBC_URL"
JDBC_USER_VARIABLE = "CONQUIET_JDBC_USER"
JDBC_PASSWORD_VARIABLE = "CONQUIET_JDBC_PASSWORD"  # noqa: S105 -- the name of a variable

_FIELD_OF = {
    REDIS_URL_VARIABLE: "redis_url",
    DATABASE_URL_VARIABLE: "database_url",
    JDBC_URL_VARIABLE: "jdbc_url",
    JDBC_USER_VARIABLE: "jdbc_user",
    JDBC_PASSWORD_VARIABLE: "jdbc_password",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a job needs to know and must not show."""

    redis_url: str = field(repr=False)
    database_url: str | None = field(default=None, repr=False)
    jdbc_url: str | None = field(default=None, repr=False)
    jdbc_user: str | None = field(default=None, repr=False)
    jdbc_password: str | None = field(default=None, repr=False)

    @classmethod
    def read(cls, path: str | None, environment: Mapping[str, str]) -> Self:
        """Those of the file, and of the environment what the file does not say.

        Raises:
            JobError: the file cannot be read, or nobody says where Redis is.
        """
        given = {name: environment[name] for name in _FIELD_OF if environment.get(name)}
        if path is not None:
            given |= _of_file(path)
        if REDIS_URL_VARIABLE not in given:
            raise JobError(
                ExitCode.ARGUMENTS,
                f"nobody says where Redis is: set {REDIS_URL_VARIABLE}, or give --secrets FILE with it",
            )
        return cls(**{_FIELD_OF[name]: value for name, value in given.items()})

    def hidden_in(self, text: str) -> str:
        """The text without any password of ours, for logs and reports."""
        for url in (self.redis_url, self.database_url, self.jdbc_url):
            for password in _passwords_of(url):
                text = text.replace(password, "***")
        return text.replace(self.jdbc_password, "***") if self.jdbc_password else text


def _of_file(path: str) -> dict[str, str]:
    found = _found(path)
    try:
        values = json.loads(found.read_text())
    except (OSError, ValueError) as error:
        raise JobError(ExitCode.ARGUMENTS, f"the file of secrets {path!r} cannot be read: {error}") from error
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise JobError(ExitCode.ARGUMENTS, f"the file of secrets {path!r} must be a JSON object of texts")
    unknown = sorted(values.keys() - _FIELD_OF.keys())
    if unknown:
        raise JobError(
            ExitCode.ARGUMENTS,
            f"the file of secrets {path!r} has {', '.join(unknown)}; known are {', '.join(_FIELD_OF)}",
        )
    return values


def _found(path: str) -> Path:
    # In cluster mode spark-submit's --files puts it beside the driver, wherever that is.
    shipped = Path(Path(path).name)
    return Path(path) if Path(path).exists() or not shipped.exists() else shipped


def _passwords_of(url: str | None) -> list[str]:
    if not url:
        return []
    try:
        password = urlsplit(url).password
    except ValueError:
        password = None
    return sorted({password, unquote(password)}, key=len, reverse=True) if password else []
