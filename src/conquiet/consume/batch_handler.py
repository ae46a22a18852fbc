"""batch_handler: marks a function that handles many messages in one transaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any


@dataclass(eq=False)
class BatchHandler:
    """A handler of batches: `handle_all(messages, session)`, or `handle_all(messages)` without a database.

    One transaction is for all of them. If it fails, nothing of it stays, and each message is handled again
    by itself, in a list of one.
    """

    # Not "function": a decorator above takes over these attributes, and Airflow's have one of that name.
    handle_all: Callable[..., Any]

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function."""
        return self.handle_all(*arguments, **named)


def batch_handler(function: Callable[..., Any]) -> BatchHandler:
    """A handler that is called with a list of messages, and one session for all of them.

    Examples:
        >>> @batch_handler
        ... def load(messages, session):  # one transaction for all of them
        ...     rows = [dict(msg.payload) for msg in messages]
        ...     session.execute(text("INSERT INTO bills (order_id) VALUES (:order_id)"), rows)
    """
    handler = BatchHandler(function)
    # `load_handler` and `reference_to` find it by the function's name.
    update_wrapper(handler, function)
    return handler
