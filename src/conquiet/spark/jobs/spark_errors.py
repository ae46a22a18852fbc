"""What Spark raises, as an exit code and one sentence."""

from __future__ import annotations

import re

from pyspark.errors import AnalysisException, PySparkException

from conquiet.spark.jobs.exit_codes import ExitCode

#: The last line of a Python traceback of a task, such as `conquiet.errors.TopicError: topic …`.
_LAST_LINE = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception)): (.+)$", re.MULTILINE)
#: Error classes of Spark's that are about the rows and not about the machines.
_ABOUT_DATA = re.compile(r"\[(CAST_|CANNOT_PARSE|MALFORMED|USER_RAISED|FAILED_READ_FILE|ARITHMETIC|NUMERIC)")
_DATA_ERRORS = ("ValueError", "TypeError", "MalformedRowsError", "RowsDifferError")


def explain(error: Exception) -> tuple[ExitCode, str]:
    """The code, and one sentence: that of a task's own code if it raised, else Spark's first line."""
    text = str(error)
    is_about_data = isinstance(error, PySparkException) and _ABOUT_DATA.search(text) is not None
    raised = _LAST_LINE.findall(text) if "Traceback (most recent call last)" in text else []
    if raised:
        kind, reason = raised[-1]
        is_about_data |= kind in _DATA_ERRORS
        sentence = f"{kind}: {reason}"
    else:
        # What Java raised is in the line behind the one that names the call.
        lines = re.sub(r"^An error occurred while calling \S+\n: ", "", text.strip()).splitlines()
        sentence = ": ".join([type(error).__name__, *lines[:1]])
    is_about_data |= isinstance(error, AnalysisException)
    return ExitCode.DATA if is_about_data else ExitCode.FAILED, sentence
