"""Columns by the names that a command line gives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 -- as everybody calls it

from conquiet.spark.jobs.exit_codes import ExitCode, JobError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def column(name: str) -> Column:
    """The column of exactly this name: a dot in it is a dot, not a field."""
    return F.col("`" + name.replace("`", "``") + "`")


def check_columns(df: DataFrame, names: Iterable[str]) -> None:
    """Refuse names that the rows do not have.

    Raises:
        JobError: with the names, and with those that are there.
    """
    missing = sorted({name for name in names if name not in df.columns})
    if missing:
        raise JobError(
            ExitCode.DATA, f"there is no column {', '.join(missing)}; there are {', '.join(df.columns)}"
        )
