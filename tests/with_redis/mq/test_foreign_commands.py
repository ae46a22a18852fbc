"""Whatever others do to the keys of an owned partition, no message stays behind a closed key for ever."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from conquiet.mq import DeadLetter, Message, MqMessage, Producer, Retry, RetryPolicy, Topics
from tests.eventually import eventually
from tests.services import redis_server
from tests.with_redis.mq.consuming import GROUP, Consumers, dead_letters, pending, quick

positions = st.floats(0, 1, exclude_max=True)


class ForeignCommands(RuleBasedStateMachine):
    """A consumer with strict ordering works, and others send commands; what they removed is nobody's task."""

    url: str

    def __init__(self) -> None:
        super().__init__()
        self.client = redis.Redis.from_url(self.url)
        self.topic = Topics(self.client).create(f"foreign-{uuid.uuid4().hex[:10]}")
        self.stream = self.topic.keys.stream(0)
        self.waiting = self.topic.keys.waiting(GROUP, 0)
        self.producer = Producer(self.client)
        self.sent: list[str] = []
        self.removed: set[str] = set()
        self.handled: list[str] = []
        self.consumers = Consumers()
        often = RetryPolicy(max_attempts=100_000, base_delay_ms=20, max_delay_ms=40)
        config = quick(ordering="strict", claim_idle_ms=80, retry=often, max_parked=4, batch_size=3)
        self.owner = self.consumers(self.topic, self.handle, config=config)
        eventually(lambda: self.client.xinfo_groups(self.stream))

    def handle(self, msg: MqMessage) -> Retry | DeadLetter | None:
        number = msg.payload["n"]
        if number % 3 == 0 and msg.attempt == 1:
            # Long enough for others to find it waiting.
            return Retry(delay_ms=30 if number % 2 else 300)
        if number % 11 == 10:
            return DeadLetter("as planned")
        self.handled.append(msg.id)
        return None

    @rule(count=st.integers(1, 8), key=st.sampled_from(["anna", "ben"]), size=st.sampled_from([1, 100_000]))
    def send(self, count, key, size):
        messages = [
            Message(payload={"n": len(self.sent) + number, "text": "x" * size}, key=key)
            for number in range(count)
        ]
        self.sent += self.producer.send_many(self.topic.name, messages)

    @precondition(lambda self: self.sent)
    @rule(position=positions, also_waiting=st.booleans())
    def ack(self, position, also_waiting):
        entry_id = self.pick(position)
        pipeline: Any = self.client.pipeline(transaction=True)
        pipeline.xack(self.stream, GROUP, entry_id)
        if also_waiting:
            pipeline.zrem(self.waiting, entry_id)
        if pipeline.execute()[0]:
            self.removed.add(entry_id)

    @precondition(lambda self: self.sent)
    @rule(position=positions)
    def delete(self, position):
        entry_id = self.pick(position)
        self.removed.add(entry_id)
        self.client.xdel(self.stream, entry_id)

    @precondition(lambda self: self.sent)
    @rule(position=positions, to_owner=st.booleans())
    def claim(self, position, to_owner):
        name = self.owner.name if to_owner else "stranger"
        self.client.xclaim(self.stream, GROUP, name, 0, [self.pick(position)])

    @precondition(lambda self: self.sent)
    @rule(position=positions)
    def take_out_of_the_waiting_set(self, position):
        self.client.zrem(self.waiting, self.pick(position))

    @rule(which=st.sampled_from(["waiting", "failures", "members", "lease"]))
    def delete_key(self, which):
        keys = self.topic.keys
        self.client.delete(
            {
                "waiting": self.waiting,
                "failures": keys.failures(GROUP, 0),
                "members": keys.members(GROUP),
                "lease": keys.lease(GROUP, 0),
            }[which]
        )

    @rule(is_owner=st.booleans())
    def delete_consumer(self, is_owner):
        """Redis acks what the consumer has pending."""
        name = self.owner.name if is_owner else "stranger"
        pipeline: Any = self.client.pipeline(transaction=True)
        pipeline.xpending_range(self.stream, GROUP, "-", "+", 10_000, name)
        pipeline.xgroup_delconsumer(self.stream, GROUP, name)
        rows, _ = pipeline.execute(raise_on_error=False)
        if not isinstance(rows, Exception):
            self.removed |= {row["message_id"].decode() for row in rows}

    @rule(length=st.integers(0, 6))
    def trim(self, length):
        pipeline: Any = self.client.pipeline(transaction=True)
        pipeline.xtrim(self.stream, length, approximate=False)
        pipeline.xrange(self.stream)
        left = {entry_id.decode() for entry_id, _ in pipeline.execute()[1]}
        self.removed |= set(self.sent) - left

    def pick(self, position: float) -> str:
        return self.sent[int(position * len(self.sent))]

    def missing(self) -> list[str]:
        letters = {letter["originalMessageId"] for letter in dead_letters(self.topic)}
        return [one for one in self.sent if one not in {*self.handled, *self.removed, *letters}]

    def teardown(self):
        try:
            if self.sent:
                self.send(1, "anna", 1)
                self.send(1, "ben", 1)
                eventually(lambda: not self.missing() and not pending(self.topic), progress=self.state)
            assert self.owner.error is None
        finally:
            self.consumers.end()
            Topics(self.client).delete(self.topic.name)
            self.client.close()

    def state(self) -> str:
        facts = [self.missing(), pending(self.topic), self.client.zrange(self.waiting, 0, -1)]
        return json.dumps(facts, default=str)


@pytest.mark.parametrize("kind", ["valkey"])
def test_every_message_that_others_did_not_remove_is_handled_or_given_up(kind):
    with redis_server(kind) as url:
        model = type("Model", (ForeignCommands,), {"url": url})
        run_state_machine_as_test(
            model,
            settings=settings(
                max_examples=15,
                stateful_step_count=14,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
