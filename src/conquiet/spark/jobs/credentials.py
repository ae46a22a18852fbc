"""Where servers are, with their passwords: from the environment or from a file, never from a command line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

from conquiet.spark.jobs.exit_codes import ExitCode, JobError

REDIS_URL_VARIABLE = "CONQUIET_REDIS_URL"
DATABASE_URL_VARIABLE = "CONQUIET_DATABASE_URL"
JDBC_URL_VARIABLE = "CONQUIET_JDBC_URL"
JDBC_USER_VARIABLE = "CONQUIET_JDBC_USER"
JDBC_PASSWORD_VARIABLE = "CONQUIET_JDBC_PASSWORD"  # noqa: S105 -- the name of a variable


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
        """Those of the file, and from the environment what the file does not have.

        Raises:
            JobError: the file cannot be read, or the URL of Redis is nowhere.
        """
        given = {name: environment[name] for name in _FIELD_OF if environment.get(name)}
        if path is not None:
            given |= _read_file(path)
        if REDIS_URL_VARIABLE not in given:
            raise JobError(
                ExitCode.ARGUMENTS,
                f"the URL of Redis is missing: set {REDIS_URL_VARIABLE}, or give --secrets FILE with it",
            )
        return cls(**{_FIELD_OF[name]: value for name, value in given.items()})

    def hidden_in(self, text: str) -> str:
        """The text without any password of ours, for logs and reports."""
        passwords = {self.jdbc_password}
        for url in (self.redis_url, self.database_url, (self.jdbc_url or "").removeprefix("jdbc:")):
            with suppress(ValueError):
                password = urlsplit(url or "").password
                passwords |= {password, unquote(password or "")}
        # Drivers take a password among the parameters too.
        for found in _JDBC_PASSWORD.findall(self.jdbc_url or ""):
            passwords |= {found, unquote(found)}
        for secret in sorted(filter(None, passwords), key=len, reverse=True):
            text = text.replace(secret, "***")
        return text


_JDBC_PASSWORD = re.compile(r"[?&;]password=([^&;]+)", re.IGNORECASE)

#: By the names of the environment.
_FIELD_OF = {f"CONQUIET_{field.name.upper()}": field.name for field in fields(Credentials)}


def _read_file(path: str) -> dict[str, str]:
    # In cluster mode spark-submit's --files puts it into the working directory of the driver.
    shipped = Path(Path(path).name)
    file = Path(path) if Path(path).exists() or not shipped.exists() else shipped
    try:
        values = json.loads(file.read_text())
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
