"""SetAside: messages whose writes the database refused, until others show who is at fault."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Generic

from conquiet.consume.channel import M
from conquiet.errors import InboxRowLockedError, WriteRefusedError

_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 60.0


@dataclass(slots=True)
class _Aside(Generic[M]):
    msg: M
    error: WriteRefusedError
    since: float
    refused_at: float
    next_try: float
    wait_s: float
    #: How often it was refused.
    refusals: int
    #: Whether others were committed since it was refused.
    is_suspect: bool = False
    #: Whether it is queued to be handled once more.
    is_queued: bool = False

    @property
    def is_refused(self) -> bool:
        return not isinstance(self.error, InboxRowLockedError)


class SetAside(Generic[M]):
    """Later messages are handled meanwhile. Refused again after one of them was committed, it has failed.

    If those are refused too, the database is unavailable. A message that waits for its inbox row never fails
    by this: another worker is in the middle of it.
    """

    def __init__(self) -> None:
        #: By entry id; asked with every message, so an attribute.
        self.messages: dict[str, _Aside[M]] = {}

    @property
    def refused(self) -> int:
        """How many messages in a row were refused."""
        return sum(aside.is_refused and not aside.is_suspect for aside in self.messages.values())

    def add(self, msg: M, error: WriteRefusedError, since: float) -> float:
        """Set a message aside, also one that was tried again; returns for how long it has waited by now."""
        known, wait_s, refusals = self.messages.get(msg.id), _FIRST_WAIT_S, 1
        if known is not None:
            since, wait_s, refusals = known.since, min(2 * known.wait_s, _LONGEST_WAIT_S), known.refusals + 1
        now = time.monotonic()
        self.messages[msg.id] = _Aside(msg, error, since, now, now + wait_s, wait_s, refusals)
        return now - since

    def suspect(self, since: float = math.inf) -> None:
        """Another message was committed, whose handler began then: try them again now."""
        for aside in self.messages.values():
            # One that began before the refusal, in another thread, shows nothing.
            if aside.is_refused and aside.refused_at <= since:
                aside.is_suspect, aside.next_try = True, 0.0

    def is_at_fault(self, entry_id: str, *, max_alone: int) -> bool:
        """Whether a message that is refused once more has failed: others were committed meanwhile.

        With `max_alone`, also when it alone was refused, more often than that.
        """
        aside = self.messages.get(entry_id)
        if aside is None:
            return False
        is_alone = 0 < max_alone < aside.refusals and self.refused == 1
        return aside.is_suspect or (is_alone and aside.is_refused)

    def take_due(self) -> list[M]:
        """Those to be tried again, in order."""
        now = time.monotonic()
        due = [aside for aside in self.messages.values() if not aside.is_queued and aside.next_try <= now]
        for aside in due:
            aside.is_queued = True
        return [aside.msg for aside in due]

    def take_all(self) -> list[M]:
        """All that are not queued, at the end."""
        taken = [aside.msg for aside in self.messages.values() if not aside.is_queued]
        self.messages.clear()
        return taken

    def raise_first(self) -> None:
        """Raise the error of the first one that is not queued, at the end of a drain."""
        for aside in self.messages.values():
            if not aside.is_queued:
                raise aside.error

    def forget(self, entry_id: str) -> None:
        """It was handled, or has failed."""
        self.messages.pop(entry_id, None)
