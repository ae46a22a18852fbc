"""Preparation: what a consumer's database needs before the first message."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from conquiet.consume.outage import Outage
from conquiet.errors import DatabaseUnavailableError
from conquiet.logs import MessageLog, message_fields

_log = MessageLog(logging.getLogger(__name__))


class Preparation:
    """Tried when the consumer is made, and again while the database is unavailable."""

    def __init__(self, prepare: Callable[[], None], whose: dict[str, str], *, max_outage_s: float) -> None:
        self._prepare = prepare
        self._whose = whose
        self._database = Outage(max_outage_s)
        self.is_done = False
        with suppress(DatabaseUnavailableError):
            prepare()
            self.is_done = True

    def try_again(self) -> None:
        """Try it once more if it is time.

        Raises:
            DatabaseUnavailableError: for longer than is tolerated.
        """
        if not self._database.is_time_to_try():
            return
        try:
            self._prepare()
            self.is_done = True
        except DatabaseUnavailableError as error:
            level = logging.DEBUG if self._database.is_on else logging.WARNING
            text = "consumer %s of topic %r waits for its database: %s"
            facts = (self._whose["consumer"], self._whose["topic"], error)
            _log.log(level, text, *facts, extra=message_fields(**self._whose))
            if self._database.failed():
                raise
