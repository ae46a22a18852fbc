"""Membership: one consumer's place in its group, and the share of the partitions that follows from it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from conquiet.logs import MessageLog, message_fields
from conquiet.mq.own.assignment import Plan, most_owned, plan
from conquiet.mq.own.consumer_config import ConsumerConfig
from conquiet.mq.own.leases import LeaseStore
from conquiet.mq.topics import Topic

_log = MessageLog(logging.getLogger(__name__))


class Membership:
    """Says that a consumer lives, and looks who else does; lives as long as the consumer."""

    def __init__(self, leases: LeaseStore, group: str, config: ConsumerConfig) -> None:
        self._leases = leases
        self._group = group
        self._config = config
        #: Partitions that nobody may own, as last logged.
        self._unownable = 0

    def plan(self, topic: Topic, owned: Sequence[int]) -> Plan:
        """Send a heartbeat; what the consumer should acquire and release, given all live members."""
        config, count = self._config, topic.partition_count
        members = self._leases.heartbeat(config.consumer_name, config.lease_ttl_ms, config.max_partitions)
        # It counts itself, whatever the server says.
        members[config.consumer_name] = config.max_partitions
        most = most_owned(members)
        unownable = 0 if most is None else max(0, count - most)
        if unownable and unownable != self._unownable:
            names = {"topic": topic.name, "group": self._group, "consumer": config.consumer_name}
            _log.warning(
                "%d partitions of topic %r have no owner: by their max_partitions the consumers of group %r "
                "may own no more",
                *(unownable, topic.name, self._group),
                extra=message_fields(**names),
            )
        self._unownable = unownable
        return plan(config.consumer_name, members, count, owned)

    def leave(self) -> None:
        """Leave the group: others take at once what is released."""
        self._leases.heartbeat(self._config.consumer_name, 0)
