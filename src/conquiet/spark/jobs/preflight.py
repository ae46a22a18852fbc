"""Checks of the servers before Spark is started: what is missing is reported within a second."""

from __future__ import annotations

import re

from redis.exceptions import NoPermissionError
from sqlalchemy import create_engine
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from conquiet.errors import ConquietError, QueueError, TopicError
from conquiet.queue import open_client
from conquiet.queue.connection import visible_errors
from conquiet.queue.no_connection import NoConnection, why_no_connection
from conquiet.spark.address import open_topic
from conquiet.spark.jobs.credentials import (
    DATABASE_URL_VARIABLE,
    REDIS_URL_VARIABLE,
    Credentials,
)
from conquiet.spark.jobs.exit_codes import ExitCode, JobError
from conquiet.spark.jobs.jdbc import check_jdbc
from conquiet.spark.jobs.plans import JobPlan

_REFUSALS = (NoConnection.NO_PASSWORD, NoConnection.WRONG_PASSWORD, NoConnection.SENTINEL_PASSWORD)

#: Of PostgreSQL (SQLSTATE, or its text before there is a session) and of MySQL and MariaDB.
_REFUSED_LOGIN = re.compile(
    r'28P01|28000|password authentication failed|no password supplied|role "[^"]*" does not exist'
    r"|no pg_hba\.conf entry|\(1045,"
)


def check_servers(plan: JobPlan, credentials: Credentials) -> None:
    """Refuse what cannot end well.

    Raises:
        JobError: a server does not answer, a topic is not there, or a URL is missing.
    """
    check_redis(credentials)
    with open_client(credentials.redis_url) as client:
        for topic in filter(None, (plan.source.topic, plan.target.topic)):
            try:
                open_topic(client, topic)
            except TopicError as error:
                raise JobError(ExitCode.TOPIC, str(error)) from error
            except ConquietError as error:
                raise JobError(ExitCode.REDIS, str(error)) from error
    if plan.source.location == "database":
        check_database(credentials)
    if plan.source.location == "jdbc":
        check_jdbc(credentials)


def check_redis(credentials: Credentials) -> None:
    """Whether Redis answers, and lets us in.

    Raises:
        JobError: it does not.
    """
    try:
        # A client of a cluster connects when it is made.
        with (
            visible_errors("PING", stream="", group=None),
            open_client(credentials.redis_url, protocol=2) as client,
        ):
            client.ping()
    except QueueError as error:
        cause = error.__cause__ or error
        if isinstance(cause, NoPermissionError) or why_no_connection(cause) in _REFUSALS:
            sentence = f"Redis refuses the login of {REDIS_URL_VARIABLE}: {cause}"
            raise JobError(ExitCode.ARGUMENTS, sentence) from error
        raise JobError(ExitCode.REDIS, f"Redis does not answer: {cause}") from error
    except OSError as error:
        raise JobError(ExitCode.REDIS, f"Redis does not answer: {error}") from error
    except ValueError as error:
        raise JobError(ExitCode.ARGUMENTS, f"{REDIS_URL_VARIABLE} cannot be used: {error}") from error


def check_database(credentials: Credentials) -> None:
    """Whether the database answers.

    Raises:
        JobError: it does not.
    """
    if credentials.database_url is None:
        raise JobError(ExitCode.ARGUMENTS, f"--in database needs {DATABASE_URL_VARIABLE}, a SQLAlchemy URL")
    try:
        engine = create_engine(credentials.database_url, poolclass=NullPool)
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        raise JobError(ExitCode.ARGUMENTS, f"{DATABASE_URL_VARIABLE} cannot be used: {error}") from error
    try:
        with engine.connect():
            pass
    except SQLAlchemyError as error:
        if is_refused_login(error):
            sentence = f"the database refuses the login of {DATABASE_URL_VARIABLE}: {error}"
            raise JobError(ExitCode.ARGUMENTS, sentence) from error
        raise JobError(ExitCode.DATABASE, f"the database does not answer: {error}") from error


def is_refused_login(error: SQLAlchemyError) -> bool:
    """Whether the database answers, and does not know the user or the password."""
    original = getattr(error, "orig", None)
    state = str(getattr(original, "sqlstate", None) or getattr(original, "pgcode", None) or "")
    return _REFUSED_LOGIN.search(f"{state} {error}") is not None
