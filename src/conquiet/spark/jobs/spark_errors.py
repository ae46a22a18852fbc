"""What Spark raises, as one sentence."""

from __future__ import annotations

import re

from pyspark.errors import AnalysisException, PySparkException

#: The last line of a Python traceback of a task, such as `conquiet.errors.TopicError: topic …`.
_LAST_LINE = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception)): (.+)$", re.MULTILINE)
#: Error classes of Spark's that are about the rows and not about the machines.
_ABOUT_DATA = re.compile(r"\[(CAST_|CANNOT_PARSE|MALFORMED|USER_RAISED|FAILED_READ_FILE|ARITHMETIC|NUMERIC)")
_DATA_ERRORS = ("ValueError", "TypeError", "MalformedRowsError", "RowsDifferError")


def sentence_of(error: Exception) -> str:
    """What a task's own code raised if it was that, else Spark's first line."""
    told = _in_task(error)
    if told is not None:
        return f"{told[0]}: {told[1]}"
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def is_about_data(error: Exception) -> bool:
    """Whether the rows or their columns are at fault."""
    if isinstance(error, AnalysisException):
        return True
    told = _in_task(error)
    if told is not None and told[0] in _DATA_ERRORS:
        return True
    return isinstance(error, PySparkException) and _ABOUT_DATA.search(str(error)) is not None


def _in_task(error: Exception) -> tuple[str, str] | None:
    found = _LAST_LINE.findall(str(error)) if "Traceback (most recent call last)" in str(error) else []
    return found[-1] if found else None
