"""What counts as an attempt: a handler that began, whoever died of it, and nothing that was only read."""

from __future__ import annotations

import json

import pytest

from conquiet.errors import LeaseLostError
from conquiet.mq import Message, RetryPolicy, Topic, Topics
from conquiet.mq.scripts import script
from conquiet.queue import open_client
from tests.eventually import HANG_S, eventually
from tests.with_redis.mq.consuming import (
    GROUP,
    Seen,
    dead_letters,
    expire,
    pending,
    quick,
    wait_until_finished,
)
from tests.with_redis.mq.proxy import LossyProxy


def die(topic: Topic) -> None:
    """Leave everything as a process does that is killed: the worker ends and may settle nothing."""
    topic.client.delete(topic.keys.lease(GROUP, 0))
    raise LeaseLostError(topic=topic.name, group=GROUP, partition=0, owner="", epoch=0)


class DiesOf(Seen):
    """Dies of the messages that say so, and remembers every begin of those and the success of the others."""

    def __init__(self, topic: Topic) -> None:
        super().__init__()
        self.topic = topic
        self.deaths: list[tuple[int, int]] = []

    def __call__(self, msg):
        if msg.payload.get("waits") and not self.deaths:
            raise RuntimeError("waits for its retry")
        if msg.payload.get("poison"):
            self.deaths.append((msg.payload["n"], msg.attempt))
            die(self.topic)
        self.append(msg)


@pytest.mark.parametrize(("max_attempts", "begun"), [(1, [1, 2]), (2, [1, 2]), (4, [1, 2, 3, 4])])
def test_a_message_that_kills_its_consumers_is_capped(topic, producer, start, max_attempts, begun):
    producer.send_many(topic.name, [{"n": 0}, {"n": 1, "poison": True}, {"n": 2}])
    handler = DiesOf(topic)

    start(topic, handler, config=quick(retry=RetryPolicy(max_attempts=max_attempts)))

    wait_until_finished(topic)
    # With one attempt it is two: nobody knows whether the first one, that was only read, had begun.
    assert handler.deaths == [(1, attempt) for attempt in begun]
    (letter,) = dead_letters(topic)
    assert (letter["errorType"], letter["attempts"]) == ("Poison", len(begun))


@pytest.mark.parametrize("max_attempts", [1, 2])
@pytest.mark.parametrize("ordering", ["default", "strict"])
def test_neighbours_of_twenty_crashes_are_handled_and_never_given_up(
    topic, producer, start, max_attempts, ordering
):
    deadly = [{"n": n, "poison": True} for n in range(20)]
    harmless = [{"n": n} for n in range(20, 60)]
    mixed = [message for pair in zip(harmless, deadly, strict=False) for message in pair] + harmless[20:]
    producer.send_many(
        topic.name, [Message(payload=payload, key=f"k{payload['n'] % 7}") for payload in mixed]
    )
    handler = DiesOf(topic)
    config = quick(ordering=ordering, retry=RetryPolicy(max_attempts=max_attempts), lease_ttl_ms=300)

    start(topic, handler, config=config)

    wait_until_finished(topic)
    assert len(handler.deaths) >= 20
    assert {letter["envelope"]["payload"]["n"] for letter in dead_letters(topic)} == set(range(20))
    assert {msg.payload["n"] for msg in handler} == set(range(20, 60))


def test_messages_that_wait_behind_their_key_keep_their_attempts_over_every_crash(topic, producer, start):
    head = Message(payload={"n": 0, "waits": True}, key="anna")
    behind = [Message(payload={"n": n}, key="anna") for n in (1, 2, 3)]
    deadly = [Message(payload={"n": n, "poison": True}, key="ben") for n in (4, 5)]
    head_id, *ids = producer.send_many(topic.name, [head, *behind])
    handler = DiesOf(topic)
    retry = RetryPolicy(max_attempts=3, base_delay_ms=6_000, max_delay_ms=6_000, backoff="fixed")
    start(topic, handler, config=quick(ordering="strict", retry=retry, lease_ttl_ms=300))
    eventually(lambda: topic.client.zscore(topic.keys.waiting(GROUP, 0), head_id))

    producer.send_many(topic.name, deadly)

    eventually(lambda: len(dead_letters(topic)) == 2)
    assert len(handler.deaths) == 5
    assert [pending(topic)[entry_id][1] for entry_id in ids] == [1, 1, 1]
    wait_until_finished(topic)
    assert handler.numbers() == [0, 1, 2, 3]
    assert len(dead_letters(topic)) == 2


def test_due_retries_that_were_only_taken_keep_their_attempts(topic, producer, start):
    producer.send_many(topic.name, [{"n": n, "waits": True} for n in range(5)])
    begun: list[tuple[int, int]] = []

    def fail_then_die_of_the_first(msg):
        begun.append((msg.payload["n"], msg.attempt))
        if msg.attempt == 1:
            raise RuntimeError("waits for its retry")
        if msg.payload["n"] == 0:
            die(topic)

    retry = RetryPolicy(max_attempts=3, base_delay_ms=50, backoff="fixed")
    start(topic, fail_then_die_of_the_first, config=quick(retry=retry, lease_ttl_ms=300))

    wait_until_finished(topic)
    assert {attempt for n, attempt in begun if n} == {1, 2}
    assert [attempt for n, attempt in begun if n == 0] == [1, 2, 3]
    assert [letter["attempts"] for letter in dead_letters(topic)] == [3]


def test_processes_that_die_give_up_what_killed_them_and_not_what_they_had_read(
    server_url, topic, producer, start, client
):
    producer.send_many(topic.name, [{"n": n, "poison": n in (1, 3)} for n in range(6)])
    begun = f"test:seen:{topic.name}"

    for _ in range(3):
        start.process(server_url, topic, "die_of_poison", max_attempts=1).wait(timeout=HANG_S)
        expire(topic)
    seen = Seen()
    start(topic, seen, config=quick(retry=RetryPolicy(max_attempts=1)))

    wait_until_finished(topic)
    assert [letter["envelope"]["payload"]["n"] for letter in dead_letters(topic)] == [1, 3]
    notes = [json.loads(line)[0] for line in client.lrange(begun, 0, -1)]
    assert (notes.count(1), notes.count(3)) == (2, 1)
    assert set(notes) | set(seen.numbers()) == set(range(6))


def test_replies_that_are_lost_again_and_again_are_no_attempts(server_url, topic, send, start, client):
    send(1)
    read, take_over = (script(name) for name in ("settle_and_read", "take_over"))
    for each in (read, take_over):
        client.script_load(each.text)
    seen = Seen()

    with LossyProxy(server_url) as proxy, open_client(f"redis://127.0.0.1:{proxy.port}") as lossy:
        proxy.lose_replies_to(read.digest.encode(), *[take_over.digest.encode()] * 5)
        config = quick(retry=RetryPolicy(max_attempts=1), lease_ttl_ms=60_000)
        running = start(Topics(lossy).open(topic.name), seen, config=config)
        wait_until_finished(topic)
        running.stop()

    assert proxy.lost == 6
    # Whoever reads it at last cannot know that the first reader never got it.
    assert [msg.attempt for msg in seen] == [2]
    assert dead_letters(topic) == []
