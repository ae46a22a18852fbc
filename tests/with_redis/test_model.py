"""The queue against a model of it: whatever is done in whatever order, both hold the same messages."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from conquiet import QueueConfig, RedisStreamsQueue
from tests.services import redis_server

GROUP = "billing"
consumers = st.sampled_from(["anna", "ben", "clara"])


class QueueModel(RuleBasedStateMachine):
    """Undelivered ids in order, pending ids with owner and delivery count, and what was acked."""

    url: str
    delivered = Bundle("delivered")

    def __init__(self) -> None:
        super().__init__()
        self.stream = f"model:{uuid.uuid4().hex[:12]}"
        self.client = redis.Redis.from_url(self.url)
        self.queues: dict[str, RedisStreamsQueue] = {}
        self.payloads: dict[str, dict] = {}
        self.undelivered: list[str] = []
        self.pending: dict[str, tuple[str, int]] = {}
        self.acked: set[str] = set()
        self.queue_of("anna")

    def queue_of(self, consumer: str) -> RedisStreamsQueue:
        if consumer not in self.queues:
            config = QueueConfig(self.stream, GROUP, consumer, block_ms=1)
            self.queues[consumer] = RedisStreamsQueue.from_url(self.url, config)
        return self.queues[consumer]

    @rule(numbers=st.lists(st.integers(), min_size=1, max_size=4))
    def enqueue(self, numbers):
        payloads = [{"n": number} for number in numbers]

        ids = self.queue_of("anna").enqueue_many(payloads)

        self.payloads |= dict(zip(ids, payloads, strict=True))
        self.undelivered += ids

    @rule(target=delivered, consumer=consumers, count=st.integers(1, 5))
    def read(self, consumer, count):
        messages = self.queue_of(consumer).read(1, count=count)

        assert [msg.id for msg in messages] == self.undelivered[:count]
        self.undelivered = self.undelivered[count:]
        return self.take(messages, consumer)

    @rule(target=delivered, consumer=consumers, count=st.integers(1, 5))
    def claim(self, consumer, count):
        expected = list(self.pending)[:count]

        messages = self.queue_of(consumer).claim_stale(0, count=count)

        assert [msg.id for msg in messages] == expected
        return self.take(messages, consumer)

    @rule(msg=delivered)
    def ack(self, msg):
        self.queue_of("anna").ack(msg)

        self.pending.pop(msg.id, None)
        self.acked.add(msg.id)

    @rule(msg=delivered, consumer=consumers)
    def hand_back(self, msg, consumer):
        is_held = self.pending.get(msg.id) == (consumer, msg.delivery_count)

        assert self.queue_of(consumer).hand_back([msg]) == ([msg] if is_held else [])

        if is_held:
            self.pending[msg.id] = (consumer, msg.delivery_count - 1)

    @rule(msg=delivered, consumer=consumers)
    def renew(self, msg, consumer):
        is_held = self.pending.get(msg.id) == (consumer, msg.delivery_count)

        assert self.queue_of(consumer).renew([msg]) == ([msg] if is_held else [])

    @rule(target=delivered, msg=delivered, consumer=consumers, count=st.integers(1, 3))
    def ack_and_read(self, msg, consumer, count):
        messages = self.queue_of(consumer).ack_and_read([msg.id], 1, count)

        self.pending.pop(msg.id, None)
        self.acked.add(msg.id)
        assert [message.id for message in messages] == self.undelivered[:count]
        self.undelivered = self.undelivered[count:]
        return self.take(messages, consumer)

    @rule(consumer=consumers)
    def crash(self, consumer):
        if consumer in self.queues:
            client: Any = self.queues.pop(consumer).client
            client.connection_pool.disconnect()

    @invariant()
    def the_server_holds_what_the_model_holds(self):
        rows: Any = self.client.xpending_range(self.stream, GROUP, "-", "+", 10_000)
        held = {
            row["message_id"].decode(): (row["consumer"].decode(), row["times_delivered"]) for row in rows
        }
        assert held == self.pending

    @invariant()
    def nothing_is_lost(self):
        assert {*self.undelivered, *self.pending, *self.acked} == set(self.payloads)
        assert self.queue_of("anna").backlog_stats().lag == len(self.undelivered)

    def take(self, messages, consumer):
        for msg in messages:
            assert msg.payload == self.payloads[msg.id]
            count = self.pending[msg.id][1] + 1 if msg.id in self.pending else 1
            assert msg.delivery_count == count
            self.pending[msg.id] = (consumer, count)
        self.pending = dict(sorted(self.pending.items(), key=lambda item: list(self.payloads).index(item[0])))
        return multiple(*messages)

    def teardown(self):
        for queue in self.queues.values():
            queue.close()
        self.client.delete(self.stream)
        self.client.close()


@pytest.mark.parametrize("kind", ["valkey", "redis62"])
def test_the_queue_and_its_model_never_differ(kind):
    with redis_server(kind) as url:
        machine = type("Machine", (QueueModel,), {"url": url})
        quiet = [HealthCheck.too_slow, HealthCheck.data_too_large]
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=quiet
            ),
        )
