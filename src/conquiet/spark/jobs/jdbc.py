"""JDBC before and after Spark: whether somebody listens at its URL, and what its errors mean."""

from __future__ import annotations

import re
import socket

from conquiet.spark.jobs.credentials import JDBC_URL_VARIABLE, Credentials
from conquiet.spark.jobs.exit_codes import ExitCode, JobError

_URL = re.compile(r"jdbc:(\w+):.*")
#: `//host:port` of most of them; Oracle also has `@host:port`.
_ADDRESS = re.compile(
    r"jdbc:(\w+):(?:\w+:)*(?://|@(?://)?)(?:[^/@;?]*@)?(\[[0-9a-fA-F:]+\]|[^/:;?,@]+)(?::(\d+))?"
)
#: Spark finds a driver in a jar of `--jars` by the name of its class only.
_DRIVERS = {
    "postgresql": "org.postgresql.Driver",
    "mysql": "com.mysql.cj.jdbc.Driver",
    "mariadb": "org.mariadb.jdbc.Driver",
    "sqlserver": "com.microsoft.sqlserver.jdbc.SQLServerDriver",
    "oracle": "oracle.jdbc.OracleDriver",
}
_PORTS = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306, "sqlserver": 1433, "oracle": 1521}
_TIMEOUT_S = 5.0

#: What drivers say, and what it means.
_NO_DRIVER = re.compile(r"No suitable driver|ClassNotFoundException|Failed to load JDBC driver")
_REFUSED_LOGIN = re.compile(
    r"password authentication failed|no password was provided|Access denied for user"
    r"|ORA-01017|Login failed for user|role \S+ does not exist"
)
_UNAVAILABLE = re.compile(
    r"Connection (?:to \S+ )?refused|Communications link failure|The connection attempt failed"
    r"|Socket fail|Could not connect to|Connection timed out"
    r"|server closed the connection|UnknownHostException"
)
#: The line of any other error of a driver.
_REFUSED = re.compile(r"\w*SQL\w*Exception: .+")
_ABOUT_DATA = re.compile(
    r"SyntaxError|syntax error|does not exist|doesn't exist"
    r"|Invalid (?:object|column) name|ORA-00904|ORA-00942"
)


def driver_of(url: str) -> dict[str, str]:
    """Spark's option for the driver of a URL, if its name is known."""
    kind = url.removeprefix("jdbc:").partition(":")[0]
    return {"driver": _DRIVERS[kind]} if kind in _DRIVERS else {}


def check_jdbc(credentials: Credentials) -> None:
    """Whether somebody listens at the host and port of the URL; only Spark can log in.

    Raises:
        JobError: nobody does, or the URL is none.
    """
    url = credentials.jdbc_url
    if url is None:
        raise JobError(ExitCode.ARGUMENTS, f"--in jdbc needs {JDBC_URL_VARIABLE}")
    if _URL.fullmatch(url) is None:
        raise JobError(
            ExitCode.ARGUMENTS, f"{JDBC_URL_VARIABLE} cannot be used: it must begin with jdbc:KIND:"
        )
    address = _ADDRESS.match(url)
    if address is None:
        return
    kind, host, port = address.groups()
    number = int(port) if port else _PORTS.get(kind)
    if number is None:
        return
    try:
        socket.create_connection((host.strip("[]"), number), timeout=_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        sentence = f"the database of {JDBC_URL_VARIABLE} does not answer at {host}:{number}: {error}"
        raise JobError(ExitCode.DATABASE, sentence) from error


def jdbc_error(text: str) -> tuple[ExitCode, str] | None:
    """The exit code and the sentence of what a driver raised; `None` if it is about something else."""
    if _NO_DRIVER.search(text):
        return ExitCode.ARGUMENTS, (
            f"Spark has no JDBC driver for {JDBC_URL_VARIABLE}: give its jar with `spark-submit --jars`, or "
            "`--conf spark.jars=…`, and the name of its class with `--option driver=…` if it is a rare one"
        )
    if found := _REFUSED_LOGIN.search(text):
        return (
            ExitCode.ARGUMENTS,
            f"the database of {JDBC_URL_VARIABLE} refuses the login: {_line_of(text, found)}",
        )
    if found := _UNAVAILABLE.search(text):
        return (
            ExitCode.DATABASE,
            f"the database of {JDBC_URL_VARIABLE} does not answer: {_line_of(text, found)}",
        )
    if found := _REFUSED.search(text):
        line = _line_of(text, found)
        code = ExitCode.DATA if _ABOUT_DATA.search(line) else ExitCode.FAILED
        return code, f"the database of {JDBC_URL_VARIABLE} refuses: {line}"
    return None


def _line_of(text: str, found: re.Match[str]) -> str:
    start, end = text.rfind("\n", 0, found.start()) + 1, text.find("\n", found.end())
    return text[start : end if end >= 0 else None].strip(": \t").removeprefix("Caused by: ")
