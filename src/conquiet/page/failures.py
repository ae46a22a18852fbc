"""What a view or an action may fail with, and which status that is."""

from __future__ import annotations

from conquiet.errors import ConquietError, MissingExtraError, QueueError, TopicError
from conquiet.page.actions.jobs import TooManyJobsError

#: What is shown as a sentence; everything else is a bug.
PROBLEMS = (ConquietError, ValueError, PermissionError, TooManyJobsError)


def status_of(error: Exception) -> int:
    """The HTTP status of a failure."""
    match error:
        case PermissionError():
            return 403
        case TooManyJobsError() | QueueError():
            return 503
        case TopicError():
            return 404
        case MissingExtraError():
            return 501
        case ConquietError():
            return 409 if "Changed" in type(error).__name__ else 404
        case _:
            return 400
