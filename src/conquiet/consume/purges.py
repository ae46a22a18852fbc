"""Purges: what is deleted from the database between messages, because it is old enough."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError

from conquiet.db import DbSession, Inbox
from conquiet.db.retention import PURGE_STEP
from conquiet.errors import ConquietError

_log = logging.getLogger(__name__)

#: Between two steps, and while there is more to purge.
_EVERY_S = 60.0
_NEXT_S = 0.2


class Purges:
    """The retention of an inbox, and maybe another one; a step at a time, which fails no message."""

    def __init__(self, inbox: Inbox | None, other: Callable[[DbSession], bool] | None) -> None:
        self._inbox = inbox
        #: Takes a step of another retention; returns whether there may be more to purge.
        self.other = other
        self._next = 0.0

    def are_due(self, *, has_connection: bool) -> bool:
        """Whether it is time for a step."""
        has_retention = self._inbox is not None and self._inbox.keep_for is not None
        # Of the other one only behind a message that was handled: an idle loop needs no connection.
        is_other_due = self.other is not None and has_connection
        return (has_retention or is_other_due) and time.monotonic() >= self._next

    def take_step(self, new_session: Callable[[], DbSession]) -> bool:
        """Take a step, and return whether that was possible."""
        wait_s, is_done = _EVERY_S, True
        try:
            with new_session() as session:
                has_more = self.other is not None and self.other(session)
                if self._inbox is not None and self._inbox.keep_for is not None:
                    has_more |= self._inbox.purge_step(session, self._inbox.keep_for) == PURGE_STEP
            if has_more:
                wait_s = _NEXT_S
        except (ConquietError, SQLAlchemyError) as error:
            is_done = False
            what = "the inbox" if self.other is None else "results of tasks or the inbox"
            _log.warning("%s could not be purged, it is tried again in %.0f s: %s", what, wait_s, error)
        self._next = time.monotonic() + wait_s
        return is_done
