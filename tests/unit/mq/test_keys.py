"""Key names: those of document 002, and on a cluster the same with a hash tag for each partition."""

from __future__ import annotations

import pytest
from redis.crc import key_slot

from conquiet.mq.keys import RegistryKeys, TopicKeys, check_topic_part


def of_partition(keys: TopicKeys, partition: int, group: str = "billing") -> list[str]:
    return [
        keys.stream(partition),
        keys.dead_letters(partition),
        keys.lease(group, partition),
        keys.epoch(group, partition),
        keys.waiting(group, partition),
        keys.failures(group, partition),
        keys.delayed(partition),
        keys.delayed_items(partition),
        keys.deduped(partition),
        keys.deduped_until(partition),
        keys.replayed(partition),
        keys.groups(partition),
    ]


def test_the_names_of_the_documents_appendix():
    registry, keys = RegistryKeys(is_cluster=False), TopicKeys("orders", "single")

    assert registry.registry == "streaming:mq:topics:registry"
    assert registry.meta("orders") == "streaming:mq:topic:orders:meta"
    assert registry.partitions("orders") == "streaming:mq:topic:orders:partitions"
    assert keys.stream(3) == "stream:topic:orders:p:3"
    assert keys.dead_letters(3) == "stream:topic:orders:dlq"
    assert keys.lease("billing", 3) == "streaming:mq:lease:orders:billing:3"
    assert keys.delayed(3) == "streaming:mq:retry:orders"


def test_on_a_cluster_all_keys_of_a_partition_share_a_slot():
    keys = TopicKeys("orders", "hash_tagged")

    for partition in range(20):
        assert len({key_slot(name.encode()) for name in of_partition(keys, partition)}) == 1


def test_on_a_cluster_partitions_spread():
    keys = TopicKeys("orders", "hash_tagged")

    assert len({key_slot(keys.stream(partition).encode()) for partition in range(20)}) == 20


def test_on_a_cluster_the_registry_is_in_one_slot():
    registry = RegistryKeys(is_cluster=True)

    names = (registry.registry, registry.meta("orders"), registry.partitions("orders"))
    assert len({key_slot(name.encode()) for name in names}) == 1


def test_a_plain_stream_is_its_own_only_partition():
    keys = TopicKeys("my:own{stream}", "bare_stream")

    assert keys.stream(0) == "my:own{stream}"
    assert keys.lease("billing", 0) == "streaming:mq:lease:my%3Aown%7Bstream%7D:billing:0"


@pytest.mark.parametrize("name", ["orders", "my:orders", "a{b}c", "{ab}", "a{b"])
def test_on_a_cluster_the_keys_of_a_plain_stream_share_its_slot(name):
    keys = TopicKeys(name, "bare_stream", is_cluster=True)

    assert keys.stream(0) == name
    assert {key_slot(each.encode()) for each in of_partition(keys, 0)} == {key_slot(name.encode())}


@pytest.mark.parametrize("layout", ["single", "hash_tagged"])
def test_no_two_keys_have_the_same_name(layout):
    found: list[str] = []
    for topic in ("orders", "orders-2", "item", "until", "p", "billing"):
        keys = TopicKeys(topic, layout)
        for partition in (0, 1):
            for group in ("billing", "p"):
                found += set(of_partition(keys, partition, group)) | {keys.members(group)}
    kinds = set(found)

    per_topic_and_group = 4 * 2 * 2 + 2
    per_topic = 2 + 7 * (2 if layout == "hash_tagged" else 1)
    assert len(kinds) == 6 * (per_topic_and_group + per_topic)


@pytest.mark.parametrize("name", ["", "a:b", "a b", "{a}", "ä", "a" * 201, "a\n"])
def test_a_name_that_would_be_ambiguous_in_a_key_is_refused(name):
    with pytest.raises(ValueError, match="topic must be"):
        check_topic_part("topic", name)


def test_a_name_that_is_no_text_is_refused():
    with pytest.raises(TypeError, match="topic must be a str"):
        check_topic_part("topic", b"orders")


@pytest.mark.parametrize(
    "name", ["orders", "{a}b", "a{b}c", "{{a}", "a{", "{}", "a}b", "{}a{b}", "a}b{c", "}{"]
)
def test_a_plain_stream_on_a_cluster_says_whether_its_keys_share_a_slot(name):
    keys = TopicKeys(name, "bare_stream", is_cluster=True)

    slots = {key_slot(key.encode()) for key in of_partition(keys, 0)}

    assert keys.has_one_slot == (len(slots) == 1)


def test_keys_of_two_servers_in_one_process_do_not_disturb_each_other():
    single, before = TopicKeys("orders", "single"), of_partition(TopicKeys("orders", "single"), 0)

    on_cluster = of_partition(TopicKeys("orders", "hash_tagged", is_cluster=True), 0)

    assert of_partition(single, 0) == before
    assert set(on_cluster).isdisjoint(before)
    with pytest.raises(AttributeError):
        single.topic = "payments"  # type: ignore[misc]
