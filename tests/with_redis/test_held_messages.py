"""renew and hand_back: only what this consumer still holds at the same delivery count is touched."""

from __future__ import annotations

from tests.eventually import eventually

GROUP = "billing"


def row(client, stream):
    (only,) = client.xpending_range(stream, GROUP, "-", "+", 10)
    return only["consumer"], only["times_delivered"], only["time_since_delivered"]


def test_renew_resets_the_idle_time_and_keeps_the_count(queue, client, stream):
    queue.enqueue({"n": 1})
    messages = queue.read(50)
    client.xclaim(stream, GROUP, "worker-1", 0, [messages[0].id], idle=60_000, justid=True)

    assert queue.renew(messages) == messages

    consumer, count, idle_ms = row(client, stream)
    assert (consumer, count) == (b"worker-1", 1)
    assert idle_ms < 10_000


def test_a_message_that_was_acked_or_claimed_is_no_longer_held(make_queue, client, stream):
    queue = make_queue()
    queue.enqueue_many([{"n": n} for n in range(3)])
    acked, stolen, kept = queue.read(50, count=3)
    queue.ack(acked)
    client.xclaim(stream, GROUP, "thief", 0, [stolen.id])

    assert queue.renew([acked, stolen, kept]) == [kept]
    assert queue.hand_back([acked, stolen, kept]) == [kept]


def test_a_message_that_came_back_to_the_same_name_is_another_delivery(make_queue, client, stream):
    queue = make_queue()
    queue.enqueue({"n": 1})
    (first,) = queue.read(50)
    (second,) = queue.claim_stale(0)

    assert queue.hand_back([first]) == []
    assert queue.hand_back([second]) == [second]

    assert row(client, stream)[1] == 1


def test_a_message_handed_back_is_claimed_at_once_by_any_threshold(make_queue):
    queue, other = make_queue(), make_queue("worker-2")
    queue.enqueue({"n": 1})
    messages = queue.read(50)
    assert other.claim_stale(1_000_000) == []

    queue.hand_back(messages)

    (msg,) = eventually(lambda: other.claim_stale(1_000_000_000))
    assert (msg.id, msg.delivery_count) == (messages[0].id, 1)


def test_nothing_to_renew_or_hand_back_asks_redis_nothing(make_queue, client, stream):
    queue = make_queue()
    client.delete(stream)
    client.set(stream, "not a stream")

    assert queue.renew([]) == queue.hand_back([]) == []
    assert queue.ack_ids([]) == 0
    assert queue.enqueue_many([]) == []
