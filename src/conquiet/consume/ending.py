"""Ending: what is done when a loop ends, whatever ended it."""

from __future__ import annotations

from contextlib import suppress
from typing import Generic

from conquiet.consume.channel import M
from conquiet.consume.conclusions import Conclusions
from conquiet.consume.loop_state import LoopState
from conquiet.errors import ConquietError, text_of


class Ending(Generic[M]):
    """That of one loop: what was committed is settled, what was read and not begun is handed back."""

    def __init__(self, state: LoopState[M], conclusions: Conclusions[M]) -> None:
        self._channel, self._tally, self._unsettled = state.channel, state.tally, state.unsettled
        self._queued, self._aside = state.queued.messages, state.decisions.aside
        self._conclusions = conclusions

    def finish(self) -> None:
        """Settle and hand back."""
        try:
            # First: a committed message must not be claimed as if it were not.
            self._unsettled.settle()
        finally:
            self._queued.extendleft(reversed(self._aside.take_all()))
            if self._channel.can_settle:
                self._tally.handed_back(self._channel.hand_back(self._queued))
                self._queued.clear()

    def finish_after(self, error: BaseException) -> None:
        """As `finish`, where that can still succeed; the report and what else failed are put on the error."""
        notes = []
        if (failed := self._conclusions.wait_for_all()) is not None and failed is not error:
            notes.append(f"and what was in another handler has failed, too: {text_of(failed)}")
        try:
            if self._channel.can_settle:
                self.finish()
        except ConquietError as also:
            notes.append(f"and what was read could not be settled and handed back: {also}")
        for settlement in self._unsettled.settlements:
            self._tally.unsettled(settlement)
        report = self._tally.report(self._channel, "error", len(self._queued))
        # A user's exception class may refuse notes and attributes; it must leave all the same.
        with suppress(Exception):
            for note in (*notes, f"drain report: {report.to_json()}"):
                error.add_note(note)
            error.drain_report = report  # type: ignore[attr-defined]  # documented in `DrainLimits`
