"""Ways of settling with a hole, each of which the explorer has to find."""

from __future__ import annotations

from conquiet.mq import Envelope
from conquiet.mq.dead_letters.letters import DeadLetters
from tests.crashes.mq_explorer import MqScenario
from tests.crashes.mq_scenarios import (
    names,
    nothing,
    one_in_each_partition,
    send_once_to_each,
    three_dead_letters,
    work,
)
from tests.crashes.mq_site import GROUP, MqSite


def one_new(site: MqSite) -> None:
    """One message that nobody has read."""
    site.send(1)


def two_of_which_one_fails(site: MqSite) -> None:
    """Two messages of a key in one batch, of which the first fails once."""
    site.send(1, fails=1)
    site.send(2)


def ack_before_schedule(site: MqSite) -> None:
    """A retry that is acked first and scheduled second: a crash in between loses the message."""
    leased = site.acquire("worker-1")
    [msg] = leased.settle_and_read([], 1)[1].messages
    keys = site.topic.keys
    site.client.xack(keys.stream(0), GROUP, msg.id)
    item = f"0:{msg.envelope.copied(attempt=1).encode().decode()}"
    site.client.hset(keys.delayed_items(0), msg.id, item)
    site.client.zadd(keys.delayed(0), {msg.id: 0})


def schedule_before_ack(site: MqSite) -> None:
    """The other way round: a crash in between leaves the message there twice."""
    leased = site.acquire("worker-1")
    [msg] = leased.settle_and_read([], 1)[1].messages
    stream = site.topic.keys.stream(0)
    site.client.xadd(stream, {"data": msg.envelope.copied(attempt=1).encode()})
    site.client.xack(stream, GROUP, msg.id)


def replay_in_two_steps(site: MqSite) -> None:
    """Added first and deleted second: a second replay adds another copy."""
    keys = site.topic.keys
    for letter in DeadLetters(site.topic).list().letters:
        site.client.xadd(keys.stream(0), {"data": letter.replayed(to_all_groups=False).encode()})
        site.client.xdel(keys.dead_letters(0), letter.id)


def send_and_then_remember(site: MqSite) -> None:
    """Adds, and remembers the dedupe id with a second command."""
    keys = site.topic.keys
    for number in (1, 2, 3):
        if site.client.hget(keys.deduped(0), f"order-{number}") is not None:
            continue
        payload = {"key": "a", "number": number}
        envelope = Envelope(topic=site.topic.name, partition=0, key="a", payload=payload)
        site.client.xadd(keys.stream(0), {"data": envelope.encode()})
        site.client.hset(keys.deduped(0), f"order-{number}", "1-1")


def create_group_one_by_one(site: MqSite) -> None:
    """A command for each partition: a crash in between leaves a group that begins in some of them."""
    streams = [site.topic.keys.stream(partition) for partition in site.topic.partitions]
    if not any(site.client.exists(one) and site.client.xinfo_groups(one) for one in streams):
        for stream in streams:
            site.client.xgroup_create(stream, GROUP, "$")
    send_once_to_each(site)


MQ_WRONG_LOOPS = {
    "mq_create_group_one_by_one": MqScenario(
        prepare=one_in_each_partition,
        run=create_group_one_by_one,
        recover=create_group_one_by_one,
        sent=names("after", 0, 1),
        is_sent_before=False,
        skipped=names("before", 0, 1),
    ),
    "mq_ack_before_schedule": MqScenario(
        prepare=one_new, run=ack_before_schedule, sent=names("a", 1), max_copies=2
    ),
    "mq_schedule_before_ack": MqScenario(
        prepare=one_new, run=schedule_before_ack, sent=names("a", 1), max_copies=2
    ),
    "mq_replay_in_two_steps": MqScenario(
        prepare=three_dead_letters,
        run=replay_in_two_steps,
        recover=replay_in_two_steps,
        sent=names("a", 1, 2, 3),
        max_copies=2,
    ),
    "mq_send_and_then_remember": MqScenario(
        prepare=nothing,
        run=send_and_then_remember,
        recover=send_and_then_remember,
        sent=names("a", 1, 2, 3),
        is_sent_before=False,
    ),
    "mq_retry_without_strict": MqScenario(
        prepare=two_of_which_one_fails, run=work(3), sent=names("a", 1, 2), is_strict=True
    ),
}
