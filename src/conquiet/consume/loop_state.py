"""LoopState: what the parts of one loop share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from conquiet.consume.channel import Channel, Handling, M
from conquiet.consume.decisions import Decisions
from conquiet.consume.limits import DrainLimits
from conquiet.consume.queued import Queued
from conquiet.consume.spans import Spans
from conquiet.consume.tally import Tally
from conquiet.consume.unsettled import Unsettled


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopState(Generic[M]):
    """Of one run over one channel; only the loop's thread uses it."""

    channel: Channel[M]
    handling: Handling[M]
    limits: DrainLimits
    spans: Spans
    tally: Tally
    #: Decided, and not settled yet.
    unsettled: Unsettled
    decisions: Decisions[M]
    #: Read, and not begun yet.
    queued: Queued[M]
