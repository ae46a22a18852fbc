"""Parts of conquiet that need the packages of an extra, and name the extra if they are missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from conquiet.errors import MissingExtraError


@contextmanager
def needs_extra(extra: str, *packages: str, part: str) -> Iterator[None]:
    """If an import in the block fails for one of these packages, name the extra that installs it.

    Raises:
        MissingExtraError: one of the packages is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in packages:
            raise
        raise MissingExtraError(part, missing=missing, extra=extra) from error
