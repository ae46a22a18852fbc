"""A group that works by hand: each delivery and settlement is one call of the test."""

from __future__ import annotations

import json
from dataclasses import replace

from conquiet.consume.outcome import Settlement
from conquiet.mq import MqMessage, RetryPolicy, Topic
from conquiet.mq.own.leases import LeaseStore
from conquiet.mq.own.partition import LeasedPartition
from conquiet.mq.own.settlement import SettlementRules
from tests.with_redis.mq.consuming import GROUP

NOW_MS = 1_700_000_000_000


class Hand:
    """One owner of one partition."""

    def __init__(self, topic: Topic, partition: int = 0, group: str = GROUP, owner: str = "worker-1") -> None:
        self._leases = LeaseStore(topic, group)
        lease = self._leases.acquire(partition, owner, 60_000)
        assert lease is not None
        self.leased = LeasedPartition(topic, group, lease, self._leases)
        self.leased.create_group()
        self._rules = SettlementRules(policy=RetryPolicy(max_attempts=1), mode="in_place", consumer=owner)

    def let_go(self) -> None:
        self._leases.release(self.leased.lease)

    def read(self, count: int = 100) -> list[MqMessage]:
        _, batch = self.leased.settle_and_read([], count)
        return batch.messages

    def finish(self, messages: list[MqMessage]) -> None:
        self.leased.settle_and_read([Settlement("ack", msg.id, msg.delivery_count) for msg in messages], 0)

    def give_up(self, error: Exception | None = None, count: int = 100) -> list[MqMessage]:
        """Read messages and make dead letters of them, malformed ones too."""
        _, batch = self.leased.settle_and_read([], count)
        failure = json.dumps({"first_delivered_at_ms": NOW_MS}).encode()
        settlements = []
        for read in batch.messages:
            msg = replace(read, failure=failure)
            problem = error or ValueError(f"no {msg.payload}")
            settlements.append(self._rules.for_error(msg, problem, NOW_MS + 1))
        settlements += [
            self._rules.for_malformed(entry, self.leased.where, NOW_MS + 1) for entry in batch.malformed
        ]
        self.leased.settle_and_read(settlements, 0)
        return batch.messages
