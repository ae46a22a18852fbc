"""Engines from URLs; errors never contain the password."""

from __future__ import annotations

from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import SQLAlchemyError

from conquiet.errors import DbError
from conquiet.masking import remember_url


def open_engine(url: str) -> Engine:
    """An engine; it connects when it is first used.

    Raises:
        DbError: the URL cannot be read, or its driver is not installed.
    """
    remember_url(url)
    try:
        return create_engine(url)
    except ImportError as error:
        problem = f"its driver is not installed: {error}"
    except (SQLAlchemyError, ValueError, TypeError) as error:
        # Their messages may quote a part of the URL.
        problem = f"it is not of the form dialect+driver://user:password@host/name ({type(error).__name__})"
    raise DbError(f"the database URL cannot be used: {problem}")
