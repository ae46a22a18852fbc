"""FailingPartitions: partitions whose workers fail although Redis is available."""

from __future__ import annotations

import logging

from conquiet.consume.outage import Outage
from conquiet.logs import MessageLog, message_fields
from conquiet.mq.metrics import emit

_log = MessageLog(logging.getLogger(__name__))

#: Several: two lost replies around a handler of hours are not an outage.
_MIN_FAILURES = 5


class FailingPartitions:
    """Since when each fails, and when its worker may be restarted."""

    def __init__(self, topic: str, group: str, consumer: str, max_outage_s: float) -> None:
        self._names = {"topic": topic, "group": group, "consumer": consumer}
        self._max_outage_s = max_outage_s
        self._outages: dict[int, Outage] = {}

    def is_time_to_try(self, partition: int) -> bool:
        """Whether the wait after its last failure is over."""
        outage = self._outages.get(partition)
        return outage is None or outage.is_time_to_try()

    def failed(self, partition: int, error: Exception, *, has_worked: bool) -> bool:
        """Count and log a failure, and return whether it has failed for as long as is tolerated."""
        outage = self._outages.setdefault(partition, Outage(self._max_outage_s, min_failures=_MIN_FAILURES))
        if has_worked:
            outage.ended()
        emit(
            "conquiet_mq_worker_failures_total", 1, self._names["topic"], str(partition), self._names["group"]
        )
        extra = message_fields(**self._names, partition=partition)
        _log.warning("the worker of partition %s will be restarted: %s", partition, error, extra=extra)
        return outage.failed()

    def clear(self) -> None:
        """Try all of them at once."""
        self._outages.clear()
