"""What takes a topic takes its name too."""

from __future__ import annotations

import os

import pytest
from prometheus_client import CollectorRegistry

from conquiet import QueueError
from conquiet.mq import DeadLetters, MqAdmin, MqCollector, Producer, TopicError, TopicPolicies
from conquiet.mq.topics import topic_of
from tests.with_redis.mq.by_hand import Hand
from tests.with_redis.mq.consuming import GROUP


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """The variable that names the server; no other setting of the machine is read."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("CONQUIET_") and "_TEST_" not in name]:
        monkeypatch.delenv(name)

    def server_is(url):
        monkeypatch.setenv("CONQUIET_REDIS_URL", url)

    return server_is


def test_a_name_is_opened_on_the_server_of_the_settings(topic, settings, server_url):
    settings(server_url)

    found = topic_of(topic.name)

    assert (found.name, found.partition_count, found.layout) == (topic.name, 1, topic.layout)
    assert topic_of(topic.name).client is found.client
    assert topic_of(topic) is topic


def test_the_config_file_names_the_server_too(topic, settings, server_url, tmp_path):
    (tmp_path / "conquiet.toml").write_text(f'redis_url = "{server_url}"\n')

    assert topic_of(topic.name).name == topic.name


def test_a_server_that_does_not_answer_is_an_error_that_says_what_to_set(settings):
    settings("redis://worker:tr0ub4dor@127.0.0.1:1/0")

    with pytest.raises(QueueError, match=r"127.0.0.1:1/0: set CONQUIET_REDIS_URL, or redis_url") as caught:
        topic_of("orders")

    assert "tr0ub4dor" not in str(caught.value)


def test_a_cluster_that_does_not_answer_is_an_error_that_says_what_to_set(settings):
    settings("redis+cluster://127.0.0.1:1/0")

    with pytest.raises(QueueError, match="set CONQUIET_REDIS_URL"):
        topic_of("orders")


def test_a_name_that_the_server_does_not_have_is_an_error_that_names_the_server(name, settings, server_url):
    settings(server_url)

    with pytest.raises(TopicError, match=f"neither a topic nor a stream; the settings name {server_url}"):
        topic_of(name)


def test_a_producer_and_an_admin_take_a_topic_or_its_name(topic, client):
    producer, admin = Producer(client), MqAdmin(client)

    producer.send(topic, {"n": 1})
    producer.send_many(topic, [{"n": 2}, {"n": 3}])
    Hand(topic).read(1)

    assert admin.topic(topic) == admin.topic(topic.name)
    assert admin.topic(topic).length == 3
    assert [group.lag for group in admin.groups(topic)] == [2]
    assert admin.pending(topic, GROUP).entries[0].deliveries == 1
    assert admin.owners(topic, GROUP).partitions[0].owner == "worker-1"


def test_dead_letters_and_a_collector_take_a_topic_or_its_name(topic, send, client, settings, server_url):
    settings(server_url)
    send(2)
    Hand(topic).give_up()
    registry = CollectorRegistry()

    registry.register(MqCollector(client, [topic]))

    assert DeadLetters(topic.name).count() == DeadLetters(topic).count() == 2
    assert registry.get_sample_value("conquiet_mq_dead_letters", {"topic": topic.name}) == 2


def test_the_registry_takes_a_topic_or_its_name(topic, topics):
    policies = TopicPolicies(retention_length=10)

    assert topics.change_policies(topic, policies).policies == policies
    assert topics.grow(topic, 2).partition_count == topics.grow(topic.name, 2).partition_count == 2
    topics.delete(topic)
    assert topic.name not in topics.names()
